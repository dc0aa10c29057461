"""Pages in one piece: nothing is loaded from elsewhere, and a browser runs no script but the page's own.

The Content-Security-Policy names style and script by their checksums. What a page shows of keys, devices and models is
put in by the script as text, never as HTML.
"""

import base64
import hashlib
from functools import cache
from html import escape
from pathlib import Path
from string import Template

from l2h.serving.http.exchange import Header
from l2h.style import page_style

_PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>$title</title>
<style>$style</style>
</head>
<body>
$body
<script>$script</script>
</body>
</html>
""")
_WELCOME = Template("""<header><h1>$model</h1>
<p class="meta">version $version, served by L2H $l2h</p></header>
<p>This server answers devices that ask for help: it speaks the Open Inference Protocol (V2), and
<code>l2h.EdgeClient</code> or any client of Triton, KServe or MLServer can ask it.</p>
<ul class="links">
$dashboard
<li><a href="/docs">Interface</a>: every path, what it takes and what it answers
(for programs: <a href="/openapi.json">openapi.json</a>)</li>
<li><a href="/metrics">Metrics</a> for Prometheus$guarded</li>
</ul>
""")
_LOGIN = Template("""<header><h1>$model</h1></header>
<form method="post" action="/dashboard/login" class="login">
<p>The dashboard is for those with a key that was made with <code>l2h keys add NAME --admin</code>.</p>
$message
<input name="username" value="admin" autocomplete="username" hidden>
<label for="key">Key</label>
<input id="key" name="key" type="password" autocomplete="current-password" required autofocus>
<button>Log in</button>
</form>
""")
_DOCS = """<header><h1>Interface</h1><p class="meta" id="about">
<noscript>This page needs its script; <a href="/openapi.json">openapi.json</a> says the same.</noscript></p></header>
<main id="paths"></main>
"""
Page = tuple[bytes, list[Header]]


def welcome_page(model: str, version: str, l2h: str, *, dashboard: bool, keys: bool) -> Page:
    """Return the page at ``/``."""
    link = '<li><a href="/dashboard">Dashboard</a>: traffic, latency, keys and charges</li>'
    shown = {"model": escape(model), "version": escape(version), "l2h": escape(l2h)}
    guarded = ", with a key made with <code>--admin</code>" if keys else ""
    return page(model, _WELCOME.substitute(shown, dashboard=link if dashboard else "", guarded=guarded))


def docs_page() -> Page:
    """Return the page that shows the OpenAPI document."""
    return page("Interface", _DOCS, "common.js", "docs.js")


def login_page(model: str, message: str = "") -> Page:
    """Return the form to log in; ``message`` says why the last try failed."""
    said = f'<p class="verdict bad" role="alert">{escape(message)}</p>' if message else ""
    return page(f"{model}: log in", _LOGIN.substitute(model=escape(model), message=said))


def dashboard_page(model: str, *, logged_in: bool) -> Page:
    """Return the page of the dashboard, which fetches its numbers itself."""
    leave = '<form method="post" action="/dashboard/logout"><button>Log out</button></form>' if logged_in else ""
    body = Template(_text("dashboard.html")).substitute(model=escape(model), leave=leave)
    return page(f"{model}: dashboard", body, "common.js", "charts.js", "devices.js", "dashboard.js")


def error_page(model: str, message: str) -> Page:
    """Return a page that says why there is none."""
    return page(model, f'<header><h1>{escape(model)}</h1></header><p class="verdict bad">{escape(message)}</p>')


def page(title: str, body: str, *scripts: str) -> Page:
    """Return a page and its headers; ``body`` is HTML, the scripts are files of this package, joined in their order."""
    style, script = page_style() + "\n" + _text("page.css"), "\n".join(map(_text, scripts))
    policy = (
        f"default-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; connect-src 'self'; "
        f"img-src data:; style-src '{_checksum(style)}'; script-src '{_checksum(script)}'"
    )
    html = _PAGE.substitute(title=escape(title), style=style, body=body, script=script)
    headers = {b"content-type": b"text/html; charset=utf-8", b"content-security-policy": policy.encode(), **PRIVATE}
    return html.encode("utf-8", errors="replace"), list(headers.items())


#: Headers of everything that people get: it is kept nowhere, framed nowhere and told to nobody.
PRIVATE = {
    b"cache-control": b"no-store",
    b"cross-origin-resource-policy": b"same-origin",
    b"referrer-policy": b"no-referrer",
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
}


@cache
def _text(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


@cache
def _checksum(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
