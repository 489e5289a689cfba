//! The description of the admin port: OpenAPI 3.0 for programs, and a page for people, both made of the table ([`table`](super::table)).

use super::endpoints::{Answer, Endpoint, Operation, Turn};
use super::table::TABLE;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::sync::LazyLock;

/// Refusals that any request may meet.
const ANY: [(u16, &str); 6] = [
    (401, "a token, or a login, is needed and missing or wrong"),
    (403, "it comes from a machine, or a page, from which it is not taken"),
    (408, "the request did not come in time"),
    (413, "the body is too long"),
    (421, "this machine asked by a name that is not the port's"),
    (503, "busy, starting or out of reach: try again"),
];

/// The text of `/api/v1/openapi.json`.
static TEXT: LazyLock<String> = LazyLock::new(|| document().to_string());

pub(super) async fn serve() -> Response {
    (StatusCode::OK, [(header::CONTENT_TYPE, "application/json")], TEXT.as_str()).into_response()
}

/// The schema of what an example shows: keys in angle brackets stand for any number of members, null for anything, and an empty object
/// or array for one of anything.
fn schema(example: &Value) -> Value {
    match example {
        Value::Null => json!({}),
        Value::Bool(_) => json!({ "type": "boolean" }),
        Value::Number(_) => json!({ "type": "integer" }),
        Value::String(_) => json!({ "type": "string" }),
        Value::Array(items) => json!({ "type": "array", "items": items.first().map_or(json!({}), schema) }),
        Value::Object(members) => match members.iter().next() {
            None => json!({ "type": "object" }),
            Some((key, member)) if key.starts_with('<') => {
                json!({ "type": "object", "additionalProperties": schema(member) })
            }
            Some(_) => {
                let properties: Map<String, Value> =
                    members.iter().map(|(key, member)| (key.clone(), schema(member))).collect();
                let required: Vec<&String> = members.keys().collect();
                json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
            }
        },
    }
}

/// An example that the table has; its own tests parse every one.
fn parsed(example: &str) -> Value {
    serde_json::from_str(example).unwrap_or(Value::Null)
}

fn responses(operation: &Operation) -> Value {
    let mut all = Map::new();
    match operation.answer {
        Answer::Json(example) => {
            let content = json!({ "schema": schema(&parsed(example)), "example": parsed(example) });
            all.insert(
                "200".to_owned(),
                json!({ "description": operation.says, "content": { "application/json": content } }),
            );
        }
        Answer::Text(example) => {
            let content = json!({ "schema": { "type": "string" }, "example": example });
            all.insert(
                "200".to_owned(),
                json!({ "description": operation.says, "content": { "text/plain": content } }),
            );
        }
        Answer::Instead(what) => {
            all.insert("501".to_owned(), json!({ "description": what }));
        }
    }
    for (status, when) in operation.refusals {
        all.insert(status.to_string(), json!({ "description": when }));
    }
    for (status, _) in ANY {
        let name = format!("#/components/responses/{status}");
        all.entry(status.to_string()).or_insert_with(|| json!({ "$ref": name }));
    }
    all.into()
}

fn described(operation: &Operation) -> Value {
    let parameters: Vec<Value> = operation
        .parameters
        .iter()
        .map(|parameter| {
            json!({
                "name": parameter.name, "in": "query", "description": parameter.says,
                "required": parameter.is_required, "schema": { "type": "string" }, "example": parameter.example,
            })
        })
        .collect();
    let mut of =
        json!({ "summary": operation.says, "parameters": parameters, "responses": responses(operation) });
    if let (Some(body), Value::Object(fields)) = (operation.body, &mut of) {
        let content = json!({ "schema": schema(&parsed(body)), "example": parsed(body) });
        fields.insert("requestBody".to_owned(), json!({ "content": { "application/json": content } }));
    }
    if let (true, Value::Object(fields)) = (operation.needs_rights(), &mut of) {
        fields.insert("security".to_owned(), json!([{}, { "token": [] }, { "login": [] }]));
    }
    of
}

/// The whole description.
fn document() -> Value {
    let mut paths = Map::new();
    for endpoint in TABLE {
        let operations = endpoint.operations.iter();
        let methods: Map<String, Value> = operations
            .map(|operation| (operation.verb.name().to_ascii_lowercase(), described(operation)))
            .collect();
        paths.insert(endpoint.path.to_owned(), methods.into());
    }
    let refusals: Map<String, Value> =
        ANY.iter().map(|(status, when)| (status.to_string(), json!({ "description": when }))).collect();
    json!({
        "openapi": "3.0.3",
        "info": {
            "title": "Bindery admin port",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "HEAD is answered wherever GET is. Changes, and entries, are for the bookie's own machine, the bearers of a token, \
                            and users or certificates of the role admin.",
        },
        "paths": paths,
        "components": {
            "responses": refusals,
            "securitySchemes": {
                "token": { "type": "http", "scheme": "bearer" },
                "login": { "type": "http", "scheme": "basic" },
            },
        },
    })
}

/// `docs/reference/admin-endpoints.md`.
pub fn page() -> String {
    let mut out = String::from(
        "# Endpoints of the admin port\n\n\
         <!-- Made from crates/server/src/admin/table.rs; a test says how. Do not edit. -->\n\n\
         The paths are BookKeeper 4.18's, with its shapes; those marked *ours* are not there. `GET /api/v1/openapi.json` says the same to\n\
         programs, as OpenAPI 3.0. HEAD is answered wherever GET is. What needs rights, a look that is marked or any PUT and DELETE, is for\n\
         the bookie's own machine, for the bearers of a token, and for users and certificates of the role `admin`:\n\
         [watching a bookie](../guide/monitoring.md#changes-over-the-admin-port). Any request may be refused with 401, 403, 408, 413, 421 or\n\
         503. The page at `/`, its files below `/console/` and `/api/v1/console/history` are those of the [console](../guide/console.md). A port\n\
         of a tierer or of `bindery repair` alone has them, `/heartbeat`, `/metrics`, its own paths, and `state` beside them.\n\n",
    );
    for endpoint in TABLE {
        let _ = writeln!(out, "## `{}`\n", endpoint.path);
        let _ = writeln!(out, "{}", origin(endpoint));
        for operation in endpoint.operations {
            let _ =
                writeln!(out, "\n**{}**{}: {}.", operation.verb.name(), rights(operation), operation.says);
            describe(operation, &mut out);
        }
        let (status, why) = endpoint.otherwise;
        let _ = writeln!(out, "\nOther methods: {status}, `{}`.\n", why.trim_end());
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

fn origin(endpoint: &Endpoint) -> String {
    let origin = if endpoint.is_javas { "BookKeeper's." } else { "*Ours.*" };
    match endpoint.turn {
        Turn::Health => {
            format!("{origin} A health check: answered at once, by whatever name the port is asked.")
        }
        Turn::Answer | Turn::Elsewhere => origin.to_owned(),
    }
}

fn rights(operation: &Operation) -> &'static str {
    match (operation.answer, operation.needs_rights()) {
        (Answer::Instead(_), _) | (_, false) => "",
        (_, true) => " (needs rights)",
    }
}

fn describe(operation: &Operation, out: &mut String) {
    if !operation.parameters.is_empty() {
        out.push_str("\n| parameter | says | for example |\n|---|---|---|\n");
    }
    for parameter in operation.parameters {
        let needed = if parameter.is_required { ", needed" } else { "" };
        let _ =
            writeln!(out, "| `{}`{needed} | {} | `{}` |", parameter.name, parameter.says, parameter.example);
    }
    if let Some(body) = operation.body {
        let _ = writeln!(out, "\nBody: `{body}`");
    }
    match operation.answer {
        Answer::Json(example) => {
            let example = serde_json::to_string_pretty(&parsed(example)).unwrap_or_default();
            let _ = writeln!(out, "\n```json\n{example}\n```");
        }
        Answer::Text(example) => {
            let _ = writeln!(out, "\nAnswers `{example}`.");
        }
        Answer::Instead(what) => {
            let _ = writeln!(out, "\n501: {what}.");
        }
    }
    if !operation.refusals.is_empty() {
        let refusals: Vec<String> =
            operation.refusals.iter().map(|(status, when)| format!("{status}: {when}")).collect();
        let _ = writeln!(out, "\nRefused with {}.", refusals.join("; "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_example_of_the_table_is_json_and_every_path_stands_once() {
        let mut paths: Vec<&str> = TABLE.iter().map(|endpoint| endpoint.path).collect();
        paths.sort_unstable();
        paths.dedup();
        assert_eq!(paths.len(), TABLE.len());
        for operation in TABLE.iter().flat_map(|endpoint| endpoint.operations) {
            let answer = if let Answer::Json(example) = operation.answer { Some(example) } else { None };
            for example in answer.into_iter().chain(operation.body) {
                serde_json::from_str::<Value>(example).unwrap_or_else(|error| panic!("{example}: {error}"));
            }
            let statuses: Vec<u16> = operation.refusals.iter().map(|(status, _)| *status).collect();
            assert!(!statuses.contains(&200), "{}", operation.says);
        }
    }

    #[test]
    fn a_schema_is_what_its_example_shows() {
        let of = |example: &str| schema(&serde_json::from_str(example).unwrap());
        assert_eq!(of(r#"{"<id>": [1]}"#)["additionalProperties"]["items"], json!({ "type": "integer" }));
        let object = of(r#"{"a": "x", "b": null}"#);
        assert_eq!((&object["required"], &object["properties"]["b"]), (&json!(["a", "b"]), &json!({})));
        assert_eq!(object["additionalProperties"], json!(false));
    }

    #[test]
    fn the_page_is_the_table() {
        let committed = include_str!("../../../../docs/reference/admin-endpoints.md");
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/admin-endpoints.md");
        if std::env::var_os("BINDERY_WRITE_PAGES").is_some() {
            #[allow(clippy::disallowed_methods, reason = "a page of the repository")]
            std::fs::write(file, page()).unwrap();
            return;
        }
        assert!(
            committed == page(),
            "run: BINDERY_WRITE_PAGES=1 cargo test -p bindery-server --lib the_page_is_the_table"
        );
    }
}
