//! The console: a page at `/` that shows this node and its cluster, with what the admin port answers.
//!
//! # Data flow
//! ```text
//! browser: /, /console/NAME (bytes of the binary) -> the page, which asks the paths that `bindery` asks
//! /metrics text, each [`history::PERIOD`] -> History (a ring of fixed size) -> /api/v1/console/history
//! ```
//!
//! # Invariants
//! 1. What is served at `/` and below `/console/` is in the binary and the same for everybody: it tells nothing of this node, so it needs
//!    no right but to reach the port. What the page shows it asks for itself, and each path judges that for itself.
//! 2. The page runs no script and takes no style but its own, and speaks to this port alone ([`POLICY`]). What comes from metadata, from
//!    entries or from peers becomes text of the page, never markup.
//! 3. The page changes nothing.
//!
//! # Limits
//! All files together: [`PAGE_BYTES_MAX`]. The ring: [`crate::memory::CONSOLE_HISTORY_BYTES`], a part of the memory of the admin port.

mod bookies;
mod history;
mod series;

use super::extension::Part;
use super::{AdminState, not_found};
use crate::flow_view::{self, Sort};
use axum::Router;
use axum::body::to_bytes;
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use bindery_io::SystemClock;
use history::History;
use sha2::{Digest, Sha256};
use std::future::Future;
use std::iter;
use std::sync::{Arc, LazyLock};
use tokio::task::JoinSet;

pub(super) use bookies::answer as bookies;

/// Bytes of all files of the page.
const PAGE_BYTES_MAX: usize = 300 << 10;

/// The content security policy of the page. It lets scripts set the styles of elements, and refuses styles in markup.
const POLICY: &str =
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'";

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const PICTURE: &str = "image/svg+xml";
const TEXT: &str = "text/plain; charset=utf-8";

/// A file of the page.
struct Asset {
    name: &'static str,
    kind: &'static str,
    bytes: &'static [u8],
}

macro_rules! assets {
    ($($name:literal from $file:literal is $kind:ident),* $(,)?) => {
        &[$(Asset { name: $name, kind: $kind, bytes: include_bytes!(concat!("../../console/", $file)) }),*]
    };
}

/// The page itself comes first.
const ASSETS: &[Asset] = assets![
    "" from "index.html" is HTML,
    "console.css" from "console.css" is STYLE,
    "main.js" from "main.js" is SCRIPT,
    "api.js" from "api.js" is SCRIPT,
    "dom.js" from "dom.js" is SCRIPT,
    "charts.js" from "charts.js" is SCRIPT,
    "node.js" from "node.js" is SCRIPT,
    "storage.js" from "storage.js" is SCRIPT,
    "cluster.js" from "cluster.js" is SCRIPT,
    "ledgers.js" from "ledgers.js" is SCRIPT,
    "icon.svg" from "icon.svg" is PICTURE,
    "uPlot.iife.min.js" from "uplot/uPlot.iife.min.js" is SCRIPT,
    "uPlot.min.css" from "uplot/uPlot.min.css" is STYLE,
    "uPlot.LICENSE" from "uplot/LICENSE" is TEXT,
];

const fn page_bytes() -> usize {
    let (mut bytes, mut at) = (0, 0);
    while at < ASSETS.len() {
        bytes += ASSETS[at].bytes.len();
        at += 1;
    }
    bytes
}
const _: () = assert!(page_bytes() < PAGE_BYTES_MAX, "the console is to be small");

/// The tag of each asset, which its bytes decide: a browser asks whether it has changed, and is sent it once for each version.
static TAGS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let tag = |asset: &Asset| {
        let hash = Sha256::digest(asset.bytes);
        hash[..8].iter().fold(String::from("\""), |tag, byte| tag + &format!("{byte:02x}")) + "\""
    };
    ASSETS.iter().map(tag).collect()
});

/// The page, and what it knows of the past.
pub(super) fn routes<S>(history: &Arc<History>) -> Router<S>
where
    S: Clone + Send + Sync + 'static,
{
    let of_page = |method: Method, headers: HeaderMap| async move { asset("", &method, &headers) };
    let of_name = |Path(name): Path<String>, method: Method, headers: HeaderMap| async move {
        match name.is_empty() {
            true => not_found(&method),
            false => asset(&name, &method, &headers),
        }
    };
    Router::new()
        .route("/", any(of_page))
        .route("/console/{name}", any(of_name))
        .route(history::PATH, any(history::answer).with_state(history.clone()))
}

/// What a node remembers for the page, and the task that looks at its metrics, which ends with this.
pub(super) struct Remembering {
    /// For [`routes`].
    pub(super) history: Arc<History>,
    _task: JoinSet<()>,
}

impl Remembering {
    /// Of a bookie and the other parts of its process: what `/metrics` says, and how many connections are stalled.
    pub(super) fn of_bookie(state: &Arc<AdminState>) -> Remembering {
        let (about, metrics) = (state.clone(), state.clone());
        let about = move || {
            let others = [(Part::Tier, "tier"), (Part::Repair, "repair")];
            let others = others.into_iter().filter(|(part, _)| about.extensions.get(*part).is_some());
            let parts: Vec<&str> = iter::once("bookie").chain(others.map(|(_, name)| name)).collect();
            node(about.bookie_id.get().map(String::as_str), &parts)
        };
        let metrics = move || {
            let state = metrics.clone();
            async move {
                let mut text = text_of(super::metrics(state.clone()).await).await;
                if let Some(shared) = state.shared.get() {
                    let flow = flow_view::gather(shared, Sort::Held, 0).await;
                    text += &format!("{} {}\n", series::STALLED, flow.totals.stalled);
                }
                text
            }
        };
        Remembering::new(about, metrics)
    }

    /// Of a part that runs without a bookie; `metrics`: its answer.
    pub(super) fn of_part<F>(part: Part, metrics: impl Fn() -> F + Send + 'static) -> Remembering
    where
        F: Future<Output = Response> + Send + 'static,
    {
        let name = match part {
            Part::Tier => "tier",
            Part::Repair => "repair",
        };
        let metrics = move || {
            let answer = metrics();
            async move { text_of(answer.await).await }
        };
        Remembering::new(move || node(None, &[name]), metrics)
    }

    fn new<F>(
        about: impl Fn() -> serde_json::Value + Send + Sync + 'static,
        metrics: impl Fn() -> F + Send + 'static,
    ) -> Remembering
    where
        F: Future<Output = String> + Send + 'static,
    {
        let (history, mut task) = (History::new(about), JoinSet::new());
        task.spawn(history.clone().fill(Arc::new(SystemClock::new()), metrics));
        Remembering { history, _task: task }
    }
}

/// The node as the page needs it: its version, its id if it is a bookie, and the parts of its process.
fn node(bookie: Option<&str>, parts: &[&str]) -> serde_json::Value {
    serde_json::json!({ "version": env!("CARGO_PKG_VERSION"), "bookie": bookie, "parts": parts })
}

/// The text of an answer that is in memory.
async fn text_of(answer: Response) -> String {
    let bytes = to_bytes(answer.into_body(), usize::MAX).await.unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn asset(name: &str, method: &Method, headers: &HeaderMap) -> Response {
    if method != Method::GET {
        return not_found(method);
    }
    let Some((asset, tag)) = ASSETS.iter().zip(&*TAGS).find(|(asset, _)| asset.name == name) else {
        return (StatusCode::NOT_FOUND, "the console has no such file\n").into_response();
    };
    let fixed = |name: HeaderName, value: &'static str| (name, HeaderValue::from_static(value));
    let head = [
        (header::ETAG, HeaderValue::from_str(tag).expect("hexadecimal digits in quotes are a value")),
        fixed(header::CACHE_CONTROL, "no-cache"),
        fixed(header::CONTENT_SECURITY_POLICY, POLICY),
        fixed(header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        fixed(header::REFERRER_POLICY, "no-referrer"),
        fixed(header::CONTENT_TYPE, asset.kind),
    ];
    let known = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    if known.is_some_and(|known| known.split(',').any(|one| one.trim().trim_start_matches("W/") == tag)) {
        return (StatusCode::NOT_MODIFIED, head).into_response();
    }
    (StatusCode::OK, head, asset.bytes).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(name: &str) -> &'static str {
        let asset = ASSETS.iter().find(|asset| asset.name == name).unwrap();
        std::str::from_utf8(asset.bytes).unwrap()
    }

    /// The quoted words behind `before` in the text.
    fn quoted<'a>(text: &'a str, before: &'a str) -> impl Iterator<Item = &'a str> {
        text.split(before).skip(1).filter_map(|rest| rest.split('"').next())
    }

    #[test]
    fn what_it_names_is_there() {
        let is_there = |name: &str| ASSETS.iter().any(|asset| asset.name == name && !name.is_empty());
        let page = text("");
        let mut named: Vec<&str> = quoted(page, "src=\"").chain(quoted(page, "href=\"")).collect();
        named.retain(|name| !name.starts_with('#'));
        assert!(named.len() >= 4, "{named:?}");
        for name in named {
            assert!(name.strip_prefix("console/").is_some_and(is_there), "{name}");
        }
        for asset in ASSETS.iter().filter(|asset| asset.kind == SCRIPT && !asset.name.starts_with("uPlot")) {
            for name in quoted(text(asset.name), "from \"") {
                assert!(name.strip_prefix("./").is_some_and(is_there), "{}: {name}", asset.name);
            }
        }
    }

    /// Invariant 2. uPlot is the work of others, and what it does is bounded by the policy.
    #[test]
    fn nothing_of_ours_makes_markup_or_leaves_this_port() {
        for asset in ASSETS.iter().filter(|asset| !asset.name.starts_with("uPlot")) {
            let text = text(asset.name);
            for word in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "style=\"",
                "onclick=\"",
            ] {
                assert!(!text.contains(word), "{}: {word}", asset.name);
            }
            let addresses = text.matches("://").count() - text.matches("http://www.w3.org/2000/svg").count();
            assert_eq!(addresses, 0, "{}: an address of others", asset.name);
        }
        assert!(!text("").contains("<script>") && !text("").contains("<style"));
    }

    /// A tierer, or repair, with an admin port of its own.
    #[tokio::test]
    async fn a_part_without_a_bookie_has_the_page_and_says_what_it_is() {
        let remembering =
            Remembering::of_part(Part::Repair, || async { "bindery_repair_listed 3\n".into_response() });
        let mut router: Router = routes(&remembering.history);
        let mut ask = async |path: &str| {
            let request = axum::extract::Request::get(path).body(axum::body::Body::empty()).unwrap();
            let Ok(answer) = tower_service::Service::call(&mut router, request).await;
            (answer.status(), text_of(answer).await)
        };
        let (status, page) = ask("/").await;
        assert!(status == StatusCode::OK && page.contains("console/main.js"), "{page}");
        let (status, history) = ask(history::PATH).await;
        let history: serde_json::Value = serde_json::from_str(&history).unwrap();
        assert_eq!((status, &history["node"]["parts"]), (StatusCode::OK, &serde_json::json!(["repair"])));
        assert!(history["node"]["bookie"].is_null(), "{history}");
    }

    #[test]
    fn an_asset_is_sent_once_and_bears_its_policy() {
        for (asset, tag) in ASSETS.iter().zip(&*TAGS) {
            let first = super::asset(asset.name, &Method::GET, &HeaderMap::new());
            assert_eq!(first.status(), StatusCode::OK);
            let head = |name: HeaderName| first.headers()[name].to_str().unwrap().to_owned();
            assert_eq!(
                (head(header::ETAG), head(header::CACHE_CONTROL)),
                (tag.clone(), "no-cache".to_owned())
            );
            assert!(head(header::CONTENT_SECURITY_POLICY).starts_with("default-src 'self';"));
            assert_eq!(head(header::X_CONTENT_TYPE_OPTIONS), "nosniff");
            for (known, status) in [
                (tag.clone(), StatusCode::NOT_MODIFIED),
                (format!("\"older\", W/{tag}"), StatusCode::NOT_MODIFIED),
                ("\"older\"".to_owned(), StatusCode::OK),
            ] {
                let headers = [(header::IF_NONE_MATCH, HeaderValue::from_str(&known).unwrap())];
                let again = super::asset(asset.name, &Method::GET, &headers.into_iter().collect());
                assert_eq!(again.status(), status, "{known}");
            }
        }
        for (name, method) in
            [("../Cargo.toml", Method::GET), ("nothing", Method::GET), ("main.js", Method::PUT)]
        {
            assert_eq!(super::asset(name, &method, &HeaderMap::new()).status(), StatusCode::NOT_FOUND);
        }
    }
}
