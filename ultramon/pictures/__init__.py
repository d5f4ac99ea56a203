"""Pictures and pages as HTML and SVG, for reports and for a web page. Knows no agent."""
