"""The dialogs of `ultramon watch`: a text to read, and a question."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static


class TextScreen(ModalScreen[None]):
    """Lines of text above the list."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(keys, "dismiss", show=False) for keys in ("escape", "q", "space", "question_mark")
    ]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title, self._text = title, text

    def compose(self) -> ComposeResult:
        """Return the widgets."""
        yield Static(self._title, id="title", markup=False)
        with VerticalScroll():
            yield Static(self._text, id="text", markup=False)
        yield Static("Up Down scroll  Escape back", id="keys", markup=False)

    def on_mount(self) -> None:
        """Let keys scroll."""
        self.query_one(VerticalScroll).focus()

    def put(self, text: str) -> None:
        """Show another text."""
        self.query_one("#text", Static).update(text)


class QuestionScreen(ModalScreen[bool]):
    """A question to be answered by y or n."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", show=False),
        *(Binding(keys, "answer(False)", show=False) for keys in ("n", "escape", "q")),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """Return the widgets."""
        yield Static(f"{self._question}\n\ny yes   n no", id="question", markup=False)

    def action_answer(self, is_yes: bool) -> None:
        """Close with the answer."""
        self.dismiss(is_yes)
