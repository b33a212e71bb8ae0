"""The content of a report, apart from its looks: a page is a sequence of sections, a section a sequence of nodes.

Sections are made once (`report.sections`) and drawn by each renderer (`report.render`), so that nothing can be said in
one format and be missing in another. Text in nodes is plain text: whatever is special in a format (Rich's markup,
terminal escape sequences, Markdown, HTML) is made harmless by the renderer of that format.
"""
