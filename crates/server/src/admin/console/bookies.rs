//! The bookies of the cluster, those that are away among them, and where each has its console.

use crate::admin::endpoints::Call;
use crate::admin::json;
use axum::response::{IntoResponse, Response};
use bindery_metadata::codec::service_info::{BookieServiceInfo, PROTOCOL_BOOKIE_RPC, PROTOCOL_HTTP};
use bindery_metadata::layout::CookiesError;
use bindery_metadata::{Layout, RegistrationMode, StoreError};
use bindery_types::{BookieId, bare_host, host_and_port};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tokio::task::JoinSet;

/// Bookies that are listed.
const LISTED_MAX: usize = 1000;
/// Registrations that are read at a time.
const READS_MAX: usize = 32;

/// `/api/v1/console/bookies`.
pub(in crate::admin) async fn answer(Call { state, .. }: Call) -> Response {
    let scheme = if state.tls.get().is_some() { "https" } else { "http" };
    match state.metadata.ask(|layout| list(layout, scheme)).await {
        Ok(bookies) => json(&bookies),
        Err(refusal) => refusal.into_response(),
    }
}

/// `scheme`: that of this node's admin port, which those of others are taken to have, too.
async fn list(layout: Layout, scheme: &str) -> Result<Value, StoreError> {
    let cookies = layout.cookies().list().await.map_err(|error| match error {
        CookiesError::Store(error) => error,
        other => StoreError::Protocol(other.to_string()),
    })?;
    let mut bookies: BTreeMap<BookieId, &str> = cookies.into_iter().map(|id| (id, "away")).collect();
    for bookie in layout.registration().list().await? {
        let state = match bookie.mode {
            RegistrationMode::Writable => "writable",
            RegistrationMode::ReadOnly => "readOnly",
        };
        bookies.insert(bookie.bookie_id, state);
    }
    let all = bookies.len();
    let listed: Vec<_> = bookies.into_iter().take(LISTED_MAX).collect();
    let mut shown = Vec::with_capacity(listed.len());
    for some in listed.chunks(READS_MAX) {
        let mut consoles = consoles_of(&layout, some, scheme).await?;
        shown.extend(
            some.iter().map(
                |(id, state)| json!({ "id": id.as_str(), "state": state, "console": consoles.remove(id) }),
            ),
        );
    }
    Ok(json!({ "bookies": shown, "leftOut": all - shown.len() }))
}

/// The addresses of consoles, of those that have one.
async fn consoles_of(
    layout: &Layout,
    bookies: &[(BookieId, &str)],
    scheme: &str,
) -> Result<BTreeMap<BookieId, String>, StoreError> {
    let mut reads = JoinSet::new();
    for (id, _) in bookies.iter().filter(|(_, state)| *state != "away") {
        let (registration, id) = (layout.registration(), id.clone());
        reads.spawn(async move { (registration.service_info(&id).await, id) });
    }
    let mut consoles = BTreeMap::new();
    while let Some(read) = reads.join_next().await {
        match read {
            Ok((Ok(Some(Ok(info))), id)) => {
                if let Some(console) = console_of(&id, &info, scheme) {
                    consoles.insert(id, console);
                }
            }
            // A registration that is gone, or that is none of ours, has no console.
            Ok((Ok(Some(Err(_)) | None), _)) => {}
            Ok((Err(error), _)) if error.is_transient() => return Err(error),
            Ok((Err(_), _)) => {}
            Err(error) => return Err(StoreError::Protocol(error.to_string())),
        }
    }
    Ok(consoles)
}

/// The address of a console by a registration. It is left out at another host than the one that clients of the bookie connect to: whoever
/// may write metadata leads no operator to another machine.
fn console_of(id: &BookieId, info: &BookieServiceInfo, scheme: &str) -> Option<String> {
    let of = |protocol| info.endpoints.iter().find(|endpoint| endpoint.protocol == protocol);
    let admin = of(PROTOCOL_HTTP)?;
    let of_id = || id.as_str().rsplit_once(':').map(|(host, _)| host);
    let host = of(PROTOCOL_BOOKIE_RPC).map(|endpoint| &endpoint.host[..]).or_else(of_id)?;
    let is_name = |host: &str| host.chars().all(|c| c.is_ascii_alphanumeric() || ".-:_".contains(c));
    let is_own = bare_host(host).eq_ignore_ascii_case(bare_host(&admin.host)) && is_name(bare_host(host));
    is_own.then(|| format!("{scheme}://{}/", host_and_port(&admin.host, admin.port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registration_leads_to_its_own_host_alone() {
        let id = BookieId::new("b1.example:3181").unwrap();
        let console = |own: &str, admin: &str| {
            console_of(&id, &BookieServiceInfo::of_bookie((own, 3181), Some((admin, 8080))), "http")
        };
        assert_eq!(console("10.0.0.1", "10.0.0.1").as_deref(), Some("http://10.0.0.1:8080/"));
        assert_eq!(console("[::1]", "::1").as_deref(), Some("http://[::1]:8080/"));
        for other in ["169.254.169.254", "b1.example.evil", "", "http://b1.example"] {
            assert_eq!(console("b1.example", other), None, "{other}");
        }
        let odd = "b1.example/path?@x";
        assert_eq!(console(odd, odd), None);
        assert_eq!(console_of(&id, &BookieServiceInfo::of_bookie(("b", 1), None), "http"), None);
    }
}
