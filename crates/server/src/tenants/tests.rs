//! What tenants decide, without connections.
#![allow(clippy::disallowed_methods, reason = "what an operator puts there")]

use super::ledgers::look_up;
use super::*;
use crate::reload::Reload;
use bindery_io::{ManualClock, SystemClock};
use bindery_metadata::memory::MemoryCluster;
use bindery_metadata::{Layout, LedgerLayout, layout};
use bindery_types::{DigestType, LedgerMetadata, LedgerSecret, Quorum};
use std::path::Path;

fn open(file: &Path) -> Arc<Tenants> {
    let config = TenantsConfig { file: file.to_owned(), refresh: TenantsConfig::REFRESH_DEFAULT };
    Arc::new(Tenants::open(config, Arc::new(SystemClock::new())).unwrap())
}

fn ledger(id: i64) -> LedgerId {
    LedgerId::new(id).unwrap()
}

/// Of an add.
fn owner(tenancy: &mut Tenancy, tenants: &Tenants, id: i64) -> Owner {
    tenancy.owner_of(tenants, None, ledger(id), || true)
}

fn named<'v>(view: &'v [TenantFlow], name: &str) -> &'v TenantFlow {
    view.iter().find(|tenant| tenant.name == name).unwrap()
}

/// Invariant 4, and what becomes of tenants when rules change.
#[test]
fn a_file_that_changed_counts_at_once_and_a_bad_one_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tenants");
    std::fs::write(&file, "tenant a adds=64Ki weight=10\ntenant b\n").unwrap();
    let tenants = open(&file);
    let mut tenancy = Tenancy::default();
    let default = owner(&mut tenancy, &tenants, 1);
    assert_eq!((default.tenant.name(), default.is_known), (DEFAULT, true));
    let a = tenants.in_force().named("a");
    let now_ns = tenants.clock.monotonic_ns();
    tenancy.take(&a, Kind::Adds, 1 << 30, 3, false, now_ns);
    let wait = tenancy.until_paid(&a, Kind::Adds, now_ns).unwrap();
    assert!(wait > Duration::from_secs(3600), "{wait:?}");
    assert_eq!(tenancy.until_paid(&a, Kind::Reads, now_ns), None);

    std::fs::write(&file, "tenant a adds=1\n").unwrap();
    assert!(tenants.reload(false) && tenants.alarms().is_empty(), "it may be written at this moment");
    assert!(tenants.reload(true));
    let alarm = tenants.alarms().concat();
    assert!(alarm.contains("line 1: a limit is 65536") && alarm.contains("tenantsFile="), "{alarm}");
    assert_eq!(named(&tenants.view(), "a").adds.limit, Some(65536), "the rules before stay");

    std::fs::write(&file, "tenant a adds=128Ki weight=20\ntenant c\n").unwrap();
    assert!(!tenants.reload(true) && tenants.alarms().is_empty());
    let view = tenants.view();
    let names: Vec<_> = view.iter().map(|tenant| tenant.name.as_str()).collect();
    assert_eq!(names, ["a", "c", DEFAULT]);
    let of_a = named(&view, "a");
    assert_eq!(
        (of_a.weight, of_a.adds.limit, of_a.adds.bytes, of_a.adds.requests),
        (20, Some(131_072), 1 << 30, 3)
    );
    assert!(
        tenancy.until_paid(&a, Kind::Adds, now_ns).unwrap() < wait,
        "a new limit counts for those who wait"
    );

    std::fs::write(&file, "").unwrap();
    assert!(!tenants.reload(true));
    assert_eq!(tenancy.until_paid(&a, Kind::Adds, now_ns), None, "nobody waits for a tenant that is gone");
    assert_eq!(tenants.view().len(), 1);
    let mut out = Exposition::new();
    tenants.expose(&mut out);
}

/// Invariant 2.
#[test]
fn what_is_free_is_counted_and_others_pay_for_a_second_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tenants");
    std::fs::write(&file, "tenant default reads=64Ki adds=64Ki\n").unwrap();
    let tenants = open(&file);
    let mut tenancy = Tenancy::default();
    let default = owner(&mut tenancy, &tenants, 1).tenant;
    let now_ns = tenants.clock.monotonic_ns();
    tenancy.take(&default, Kind::Reads, 1 << 30, 1, true, now_ns);
    let wait = tenancy.until_paid(&default, Kind::Reads, now_ns).unwrap();
    assert!(wait <= Duration::from_secs(1), "{wait:?}");
    assert_eq!(named(&tenants.view(), DEFAULT).reads.bytes, 1 << 30);
    // Nor does it make a connection one that has paid.
    tenancy.take(&default, Kind::Adds, 1 << 30, 1, true, now_ns);
    assert!(!tenancy.has_added(&default));
}

/// Look-ups (invariant 1 there): one for a ledger however many requests come, none without rules of properties.
#[test]
fn a_ledger_is_asked_for_once_and_only_for_a_property() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tenants");
    std::fs::write(&file, "tenant a\nuser u a\n").unwrap();
    let tenants = open(&file);
    let mut tenancy = Tenancy::default();
    (0..100).for_each(|_| assert!(owner(&mut tenancy, &tenants, 1).is_known));
    assert_eq!(tenants.ledgers.len(), 0);
    std::fs::write(&file, "tenant a\nproperty k v a\n").unwrap();
    assert!(!tenants.reload(true));
    let asked = tenants.ledgers.asked_now();
    // Of a read of what is not here (invariant 4).
    let none = tenancy.owner_of(&tenants, None, ledger(3), || false);
    assert!(!none.is_known && tenants.ledgers.len() == 0);
    for id in [1, 2].repeat(100) {
        let owner = owner(&mut tenancy, &tenants, id);
        assert_eq!((owner.tenant.name(), owner.is_known), (DEFAULT, false), "it waits for no limit yet");
    }
    assert_eq!((tenants.ledgers.len(), tenants.ledgers.asked_now() - asked), (2, 2));
    // Who floods the look-ups is held to the limit of the default tenant.
    let is_known = (10..).map(|id| owner(&mut tenancy, &tenants, id).is_known);
    let asked = is_known.take_while(|is_known| !is_known).count();
    assert_eq!(asked, 4096 - 2);
}

/// Look-ups (invariants 2 and 3 there).
#[tokio::test]
async fn a_look_up_that_finds_nothing_changes_nothing_and_is_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tenants");
    std::fs::write(&file, "tenant a\nproperty k v a\n").unwrap();
    let clock = Arc::new(ManualClock::new(0));
    let config = TenantsConfig { file: file.clone(), refresh: TenantsConfig::REFRESH_DEFAULT };
    let tenants = Arc::new(Tenants::open(config, clock.clone()).unwrap());
    let store = MemoryCluster::new().open();
    layout::init_cluster(&store, "/ledgers", LedgerLayout::Hierarchical, [1; 16]).await.unwrap();
    let layout = Layout::open(Arc::new(store), "/ledgers", None).await.unwrap();
    let mut tenancy = Tenancy::default();
    let mut of_it = || {
        let owner = owner(&mut tenancy, &tenants, 1);
        (owner.tenant.name().to_owned(), owner.is_known)
    };
    let (default, a) = ((DEFAULT.to_owned(), true), ("a".to_owned(), true));
    assert!(!of_it().1);
    look_up(tenants.clone(), layout.clone(), ledger(1)).await;
    assert_eq!(of_it(), default, "there is no such ledger");

    let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: Vec::new() };
    let mut metadata = LedgerMetadata::new(Quorum::new(1, 1, 1).unwrap(), secret);
    metadata.custom.insert("k".to_owned(), b"v".to_vec());
    layout.ledgers().create(ledger(1), &metadata).await.unwrap();
    let asked = tenants.ledgers.asked_now();
    assert_eq!((of_it(), tenants.ledgers.asked_now()), (default, asked));
    clock.advance(Duration::from_secs(10));
    of_it();
    assert_eq!(tenants.ledgers.asked_now(), asked + 1, "it may have been made meanwhile");
    look_up(tenants.clone(), layout.clone(), ledger(1)).await;
    assert_eq!(of_it(), a);

    // The ledger is deleted, and the rules change.
    layout.ledgers().delete(ledger(1), None).await.unwrap();
    std::fs::write(&file, "tenant a adds=1M\nproperty k v a\n").unwrap();
    assert!(!tenants.reload(true));
    assert_eq!((of_it(), tenants.ledgers.asked_now()), (a.clone(), asked + 2));
    look_up(tenants.clone(), layout.clone(), ledger(1)).await;
    assert_eq!(of_it(), a, "what was known of it still is");
}

/// Invariant 3, of each pool by itself.
#[test]
fn adds_of_a_tenant_leave_as_much_of_a_pool_as_they_hold() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tenants");
    std::fs::write(&file, "tenant a\ntenant b\n").unwrap();
    let tenants = open(&file);
    let [a, b] = ["a", "b"].map(|name| tenants.in_force().named(name));
    let (small, large) = (ByteBudget::new("small", 640), ByteBudget::new("large", 20));
    let hold_all = |tenant: &Arc<Tenant>, pool: &ByteBudget, bytes: u64| -> Vec<HeldMemory> {
        std::iter::from_fn(|| tenants.hold(tenant, pool, bytes)).collect()
    };
    let of_large = hold_all(&a, &large, 5);
    assert_eq!(of_large.len(), 2);
    let of_small = hold_all(&a, &small, 64);
    assert_eq!(of_small.len(), 5, "what it has of another pool is not counted here");
    assert_eq!([hold_all(&b, &large, 5).len(), hold_all(&b, &small, 64).len()], [1, 3]);
    drop((of_large, of_small));
    assert_eq!(hold_all(&b, &large, 5).len(), 2);
}

/// Connections of a tenant get equal parts by weight.
#[test]
fn turns_of_a_tenants_connections_are_worth_its_weight_together() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tenants");
    std::fs::write(&file, "tenant heavy weight=400\ntenant light weight=100\n").unwrap();
    let tenants = open(&file);
    let [heavy, light] = ["heavy", "light"].map(|name| tenants.in_force().named(name));
    let base = 64 << 10;
    assert_eq!((heavy.quantum(base), light.quantum(base)), (4 * base, base));
    let in_line: Vec<InLine> = (0..3).map(|_| heavy.stand_in_line()).collect();
    assert_eq!(heavy.quantum(base), base);
    drop(in_line);
    assert_eq!(heavy.quantum(base), 4 * base);
    // Few connections of one tenant against many of another.
    let in_line: Vec<InLine> = (0..127).map(|_| light.stand_in_line()).collect();
    assert_eq!(heavy.quantum(base), 4 * 128 * light.quantum(base));
    drop(in_line);
}
