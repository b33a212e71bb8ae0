"""What a report says, apart from how it looks: a page is a sequence of sections, a section a sequence of nodes.

Sections are made once (`report.sections`) and drawn by each renderer (`report.render`), so that nothing can be said in
one format and be missing in another. Text in nodes is plain text: whatever is special in a format (Rich's markup,
terminal escape sequences, Markdown, HTML) is made harmless by the renderer of that format.
"""

from guestmark.page.charts import (
    Drawing,
    Picture,
    RatioRow,
    Ratios,
    Series,
    SeriesRow,
    Spread,
    SpreadRow,
    Stack,
)
from guestmark.page.nodes import (
    Bullets,
    Chart,
    Command,
    Definitions,
    Heading,
    Matrix,
    MatrixCell,
    Node,
    Note,
    NoteKind,
    Page,
    Paragraph,
    Part,
    Section,
)
from guestmark.page.tables import Align, Cell, Column, Row, RowName, Table
from guestmark.page.text import Inline, Span, Tone, inert, line, spans

__all__ = [
    "Align",
    "Bullets",
    "Cell",
    "Chart",
    "Column",
    "Command",
    "Definitions",
    "Drawing",
    "Heading",
    "Inline",
    "Matrix",
    "MatrixCell",
    "Node",
    "Note",
    "NoteKind",
    "Page",
    "Paragraph",
    "Part",
    "Picture",
    "RatioRow",
    "Ratios",
    "Row",
    "RowName",
    "Section",
    "Series",
    "SeriesRow",
    "Span",
    "Spread",
    "SpreadRow",
    "Stack",
    "Table",
    "Tone",
    "inert",
    "line",
    "spans",
]
