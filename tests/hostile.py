"""Names as a hostile trace could have them: what each of them would do where it is shown as it is."""

from __future__ import annotations

import re

INJECTIONS = {
    "script": "</title></style></script><script>alert(1)</script>",
    "attribute": '" onmouseover="alert(1)" x=\'><img src=x onerror=alert(1)>',
    "svg": "]]></text></svg><svg onload=alert(1)>",
    "entity": "&lt;b&gt; &#x3c;script&#x3e; &amp;",
    "style": "</style><style>*{background:url(//evil.example/x)}",
    "title of a terminal": "\x1b]0;owned\x07",
    "clipboard": "\x1b]52;c;b3duZWQ=\x07",
    "link of a terminal": "\x1b]8;;http://evil.example\x1b\\text\x1b]8;;\x1b\\",
    "device control": "\x1bP+q544e\x1b\\",
    "cursor": "\x1b[2J\x1b[31mred\x9b2J",
    "null and bell": "nul\x00l \x07 \x7f \x85",
    "bidi": "abc\u202egnp.exe\u2066\u200b\u2028",
    "markup of Textual": "void f[/b](int) [@click=app.quit]x[/] [[[red]",
    "markdown": "| a | **b** `c` [d](http://evil.example) ![e](//evil.example/e.png) <b>f</b> @user #1 ~~g~~",
    "formula": "=cmd|' /C calc'!A0",
    "path": "../../../../tmp/escape",
    "half a pair": "\udc80\udcff",
    "long": "long name " * 400,
    "lines": "one\r\ntwo\nthree\ttab",
    "percent": "%s %n {0} {{ }} ${HOME} $(id) `id`",
}
"""By what they are after."""

UNSAFE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u200b\u2028]")
"""What never stands in a text that is shown: controls other than line feeds, and marks that turn or hide text."""
