//! Object storage: the store, the tierer of this process, and the bookie's reads from the store and its trims.

use crate::sources::values::Values;
use crate::table::Draft;
use crate::table::flags::{BookieArgs, Switch};
use crate::tier;
use bindery_server::tier::TierConfig;

pub(super) fn apply(args: &BookieArgs, file: &mut Values, draft: &mut Draft) {
    let keys = &draft.object;
    let of_file = keys.url.clone().map(|url| (if args.tier.is_some() { "--tier" } else { "tierUrl" }, url));
    let of_shell = args.tier_of_shell.clone().map(|url| ("BINDERY_TIER", url));
    let Some((option, url)) = of_file.or(of_shell) else {
        if args.tier_role == Some(Switch::On) {
            file.faults.push("--tier-role on: name the object store with --tier URL".to_owned().into());
        }
        return;
    };
    match tier::open(option, &url, keys.config.clone()) {
        Ok(settings) => {
            draft.config.tier = Some(TierConfig {
                memory_bytes: keys.read_memory,
                trim: keys.trim.clone(),
                ..TierConfig::new(settings.store.url().clone())
            });
            draft.tier = Some((settings.beside_bookies(), keys.has_role.unwrap_or(true)));
        }
        Err(fault) => file.faults.push(fault.into()),
    }
}
