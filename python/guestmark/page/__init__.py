"""The content of a report, apart from its looks: a page is a sequence of sections, a section a sequence of nodes.

Sections are created once (`report.sections`) and drawn by each renderer (`report.render`), so that no format lacks what
another one has. Nodes contain plain text: the renderer of each format escapes what is special in that format (Rich's
markup, terminal escape sequences, Markdown, HTML).
"""
