"""What counts as text in the messages of frameworks."""

from hypothesis import given
from hypothesis import strategies as st

from ultramon.integrations.message_texts import shown, texts_in

PICTURE = {"type": "image", "data": "iVBORw0KGgo" * 9_000, "mimeType": "image/png"}
RESULT = {"content": [{"type": "text", "text": "A plot."}, PICTURE], "isError": False}


def test_a_picture_in_the_result_of_a_tool_is_no_text():
    """An MCP server gives it as base64; the words beside it count."""
    assert "A plot." in shown(RESULT)
    assert len(shown(RESULT)) < 200
    (text,) = texts_in({"function_response": {"name": "draw", "response": RESULT}})
    assert "A plot." in text
    assert len(text) < 200
    assert len(shown({"resource": {"blob": "A" * 9_000, "mimeType": "application/pdf"}})) < 100
    assert shown({"picture": b"x" * 9_000}) == "{'picture': ''}"


def test_a_text_of_a_stated_kind_is_one():
    """As of an MCP resource, and data that is no picture."""
    resource = {"resource": {"text": "Be brief.", "mimeType": "text/plain"}, "data": "rows"}
    assert shown(resource) == str(resource)


@given(st.recursive(st.none() | st.text() | st.integers(), st.lists))
def test_other_values_are_shown_as_they_are(value):
    """However deep: what is deeper than a message ever is stays as it is."""
    assert shown(value) == str(value)
