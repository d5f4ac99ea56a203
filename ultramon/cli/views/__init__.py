"""What commands draw: tables, charts, reports, a relay at work, `ultramon watch`, status bars."""
