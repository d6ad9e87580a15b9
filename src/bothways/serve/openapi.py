"""The description of the service (OpenAPI 3.1) from the schemas that requests are checked against, and a page of it."""

import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

import bothways
from bothways.serve.endpoint import Endpoint

_STATUSES = {
    400: "The body is no JSON, or asks for what the model cannot do.",
    401: "The API key is missing or wrong.",
    404: "There is no such model or index.",
    408: "The body did not come in time.",
    413: "Too many bytes, texts or tokens, or a text that is too long.",
    422: "A value is not as the schema says, or the model cannot read it.",
    429: "Too many requests; Retry-After says when to ask again.",
    504: "The answer took too long.",
}


def openapi(endpoints: Sequence[Endpoint], models: Mapping[str, Sequence[str]], has_key: bool) -> dict[str, Any]:
    """The description as a JSON value. `models`: what each can, by name."""
    paths = {endpoint.path: {"post": _operation(endpoint, models)} for endpoint in endpoints}
    for path, about in _GETS.items():
        paths[path] = {"get": {"summary": about, "responses": {"200": {"description": "The response."}}}}
    keys = {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}} if has_key else {}
    return {
        "openapi": "3.1.0",
        "info": {"title": "bothways", "version": bothways.__version__, "description": f"Models: {', '.join(models)}."},
        "paths": paths,
        "components": keys,
        **({"security": [{"key": []}]} if has_key else {}),
    }


_GETS = {
    "/v1/models": "The models of the service.",
    "/health": "Whether the process answers.",
    "/ready": "Whether the service takes requests; 503 while it stops.",
    "/metrics": "Counters in the text format of Prometheus.",
}


def _operation(endpoint: Endpoint, models: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    content = {"schema": endpoint.schema, "example": _example(endpoint, models)}
    answers = {str(status): {"description": about} for status, about in _STATUSES.items()}
    return {
        "summary": endpoint.about,
        "requestBody": {"required": True, "content": {"application/json": content}},
        "responses": {"200": {"description": "The response.", "content": {"application/json": {}}}, **answers},
    }


def _example(endpoint: Endpoint, models: Mapping[str, Sequence[str]]) -> Mapping[str, Any]:
    """The example with the name of a model that can answer: vectors are the only answers that must name one."""
    able = next((name for name, abilities in models.items() if "embed" in abilities), None)
    return {**endpoint.example, "model": able} if "model" in endpoint.example and able else endpoint.example


def docs_page(described: Mapping[str, Any], endpoints: Sequence[Endpoint]) -> str:
    """A page that needs nothing from elsewhere: every endpoint with its keys, and a form to try it."""
    parts = [_part(endpoint, described["paths"][endpoint.path]["post"]) for endpoint in endpoints]
    gets = "".join(
        f'<li><a href="{path}"><code>GET {path}</code></a> {html.escape(about)}</li>' for path, about in _GETS.items()
    )
    about = html.escape(described["info"]["description"])
    return _PAGE.format(version=described["info"]["version"], about=about, parts="\n".join(parts), gets=gets)


def _part(endpoint: Endpoint, operation: Mapping[str, Any]) -> str:
    required = endpoint.schema["required"]
    rows = "".join(
        f"<tr><td><code>{name}</code>{' *' if name in required else ''}</td><td>{html.escape(_kind(one))}</td>"
        f"<td>{html.escape(one.get('description', ''))}</td></tr>"
        for name, one in endpoint.schema["properties"].items()
    )
    example = operation["requestBody"]["content"]["application/json"]["example"]
    text = html.escape(json.dumps(example, ensure_ascii=False, indent=1))
    return (
        f"<details><summary><code>POST {endpoint.path}</code> {html.escape(endpoint.about)}</summary>"
        f"<table>{rows}</table><form data-path='{endpoint.path}'><textarea rows='6' aria-label='body of the request'>"
        f"{text}</textarea><button>Send</button><pre aria-live='polite'></pre></form></details>"
    )


def _kind(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return " | ".join(schema["enum"])
    return str(schema.get("title") or schema["type"])


_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>bothways</title>
<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,"><style>
:root {{ color-scheme: light dark }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 56rem; margin: 2rem auto; padding: 0 1rem }}
details {{ border: 1px solid #8886; border-radius: 6px; margin: .5rem 0; padding: .5rem 1rem }}
summary {{ cursor: pointer }} td {{ padding: .1rem 1rem .1rem 0; vertical-align: top }}
textarea {{ width: 100%; box-sizing: border-box; font: 14px/1.4 monospace }}
pre {{ overflow: auto; max-height: 20rem; background: #8881; padding: .5rem }} pre:empty {{ display: none }}
</style><h1>bothways {version}</h1><p>{about} <a href="/openapi.json">openapi.json</a></p>
<p><label>API key, if the service asks for one: <input id="key" type="password" autocomplete="off"></label></p>
{parts}<h2>Others</h2><ul>{gets}</ul><p>* required</p><script>
for (const form of document.forms) form.onsubmit = async event => {{
  event.preventDefault();
  const [body, key, out] = [form.querySelector("textarea").value, document.getElementById("key").value,
    form.querySelector("pre")];
  const headers = {{"content-type": "application/json", ...(key && {{authorization: "Bearer " + key}})}};
  try {{
    const answer = await fetch(form.dataset.path, {{method: "POST", headers, body}});
    const text = await answer.text();
    let shown = text;
    try {{ shown = JSON.stringify(JSON.parse(text), null, 1); }} catch {{ }}
    out.textContent = answer.status + " " + shown.slice(0, 20000);
  }} catch (error) {{ out.textContent = error; }}
}};
</script></html>
"""
