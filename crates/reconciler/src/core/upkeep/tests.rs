use super::*;

const OURS: &str = "ours";

fn id(raw: i64) -> LedgerId {
    LedgerId::new(raw).unwrap()
}

fn ids(raw: std::ops::Range<i64>) -> Vec<LedgerId> {
    raw.map(id).collect()
}

fn object(n: u8) -> ObjectId {
    ObjectId::new(7, [n; 10])
}

/// A cluster, as an upkeep sees it.
struct Around {
    upkeep: Upkeep,
    now: Duration,
    catalogue: BTreeSet<LedgerId>,
    metadata: BTreeSet<LedgerId>,
    proof: Proof,
    garbage: BTreeSet<ObjectId>,
    deletion: Deletion,
    alarms: Vec<Alarm>,
    done: Vec<UpkeepAction>,
    /// So often a removal leaves extents for a further one.
    removals_left: u64,
}

impl Around {
    fn new(catalogue: std::ops::Range<i64>, metadata: std::ops::Range<i64>) -> Around {
        let now = Duration::from_secs(1000);
        Around {
            upkeep: Upkeep::new(now, UpkeepSettings::default(), OURS.to_owned(), Canaries::none()),
            now,
            catalogue: ids(catalogue).into_iter().collect(),
            metadata: ids(metadata).into_iter().collect(),
            proof: Proof {
                instance_id: OURS.to_owned(),
                is_whole: true,
                has_mark: true,
                next_id: LedgerId::new(1000),
            },
            garbage: BTreeSet::new(),
            deletion: Deletion::Done,
            alarms: Vec::new(),
            done: Vec::new(),
            removals_left: 0,
        }
    }

    /// One pass, from where it waits to where it waits again.
    fn pass(&mut self) {
        self.now = self.now.max(self.upkeep.wake_at().unwrap());
        while let Some(action) = self.upkeep.next(self.now) {
            assert_eq!(self.upkeep.next(self.now), None, "one action at a time");
            self.done.push(action.clone());
            let event = match action {
                UpkeepAction::Ledgers => UpkeepEvent::Ledgers(Ok(self.catalogue.iter().copied().collect())),
                UpkeepAction::Prove => UpkeepEvent::Proven(Ok(self.proof.clone())),
                UpkeepAction::List { is_first } => UpkeepEvent::Listed(Ok((is_first
                    && !self.metadata.is_empty())
                .then(|| self.metadata.iter().copied().collect()))),
                UpkeepAction::LookAgain(ledgers) => UpkeepEvent::LookedAgain(Ok(ledgers
                    .into_iter()
                    .filter(|ledger| !self.metadata.contains(ledger))
                    .collect())),
                UpkeepAction::Remove(ledgers) if self.removals_left > 0 => {
                    self.removals_left -= 1;
                    UpkeepEvent::Removed(Ok(ledgers.into_iter().map(|ledger| (ledger, 10)).collect()))
                }
                UpkeepAction::Remove(ledgers) => {
                    ledgers.iter().for_each(|ledger| assert!(self.catalogue.remove(ledger)));
                    UpkeepEvent::Removed(Ok(ledgers.into_iter().map(|ledger| (ledger, 0)).collect()))
                }
                UpkeepAction::Mark => {
                    self.proof.has_mark = true;
                    UpkeepEvent::Marked(Ok(()))
                }
                UpkeepAction::FindGarbage { limit, .. } => {
                    UpkeepEvent::Garbage(Ok(self.garbage.iter().copied().take(limit).collect()))
                }
                UpkeepAction::Delete(objects) => UpkeepEvent::Deleted(
                    objects.into_iter().map(|object| (object, self.deletion.clone())).collect(),
                ),
                UpkeepAction::Forget(objects) => {
                    objects.iter().for_each(|object| assert!(self.garbage.remove(object)));
                    UpkeepEvent::Forgotten(Ok(objects.len() as u64))
                }
                UpkeepAction::Scan { .. } => UpkeepEvent::Scanned(Ok(ScanPage::default())),
                UpkeepAction::AskFor(_) => UpkeepEvent::Missing(Ok(Vec::new())),
                UpkeepAction::DeleteOrphans(_) => UpkeepEvent::OrphansDeleted(Vec::new()),
            };
            self.upkeep.on_event(self.now, event, &mut self.alarms);
        }
    }

    fn has_removed(&self) -> bool {
        self.done.iter().any(|action| matches!(action, UpkeepAction::Remove(_)))
    }
}

#[test]
fn a_large_share_goes_when_a_second_pass_finds_the_same() {
    let mut around = Around::new(0..100, 90..100);
    around.pass();
    assert!(!around.has_removed() && around.upkeep.status().doubt.is_none());
    assert_eq!(around.upkeep.wake_at(), Some(around.now + UpkeepSettings::default().confirm_pause));
    around.pass();
    assert_eq!(around.catalogue, around.metadata);
    assert_eq!(around.upkeep.status().counts.ledgers_removed, 90);
}

/// Invariant 1: each part of the proof is wanted.
#[test]
fn an_empty_listing_is_believed_only_of_a_store_that_proves_to_be_current() {
    let wrong: [fn(&mut Proof); 5] = [
        |proof| proof.instance_id = "another".to_owned(),
        |proof| proof.is_whole = false,
        |proof| proof.has_mark = false,
        |proof| proof.next_id = LedgerId::new(3),
        |proof| proof.next_id = None,
    ];
    for (index, spoil) in wrong.into_iter().enumerate() {
        let mut around = Around::new(0..5, 0..0);
        spoil(&mut around.proof);
        (0..3).for_each(|_| around.pass());
        assert!(!around.has_removed(), "{index}");
        assert_eq!((around.alarms.len(), around.upkeep.status().counts.doubts), (1, 3), "{index}");
        assert!(!around.done.contains(&UpkeepAction::Mark), "{index}: a doubt adds no evidence");
    }
    let mut around = Around::new(0..5, 0..0);
    around.pass();
    assert!(around.catalogue.is_empty() && around.alarms.is_empty());
}

#[test]
fn a_store_that_is_replaced_in_a_pass_removes_nothing() {
    let mut around = Around::new(0..5, 0..0);
    while !matches!(around.done.last(), Some(UpkeepAction::LookAgain(_))) {
        let action = around.upkeep.next(around.now).unwrap();
        around.done.push(action.clone());
        let event = match action {
            UpkeepAction::Ledgers => UpkeepEvent::Ledgers(Ok(ids(0..5))),
            UpkeepAction::Prove => UpkeepEvent::Proven(Ok(around.proof.clone())),
            UpkeepAction::List { .. } => UpkeepEvent::Listed(Ok(None)),
            UpkeepAction::LookAgain(ledgers) => UpkeepEvent::LookedAgain(Ok(ledgers)),
            other => panic!("{other:?}"),
        };
        around.upkeep.on_event(around.now, event, &mut around.alarms);
    }
    around.proof.has_mark = false;
    around.pass();
    assert!(!around.has_removed());
    assert!(around.upkeep.status().doubt.as_ref().unwrap().contains("mark"));
}

/// A cluster begins: without ledgers in the catalogue the first pass leaves a mark, and only that one.
#[test]
fn an_empty_catalogue_gets_one_mark() {
    let mut around = Around::new(0..0, 0..5);
    around.proof.has_mark = false;
    (0..3).for_each(|_| around.pass());
    assert_eq!(around.done.iter().filter(|action| **action == UpkeepAction::Mark).count(), 1);
}

/// Invariants 2 and 3.
#[test]
fn objects_that_cannot_be_deleted_are_one_alarm_and_hold_up_nothing() {
    let mut around = Around::new(0..5, 0..5);
    around.garbage = (0..3).map(object).collect();
    around.deletion = Deletion::Denied("403".to_owned());
    (0..3).for_each(|_| around.pass());
    let is_denial = |alarm: &&Alarm| matches!(alarm, Alarm::CannotDelete { .. });
    assert_eq!(around.alarms.iter().filter(is_denial).count(), 1);
    assert_eq!((around.garbage.len(), around.upkeep.status().counts.delete_failures), (3, 3));
    around.deletion = Deletion::Done;
    around.pass();
    assert_eq!((around.garbage.len(), around.upkeep.status().counts.delete_failures), (0, 0));
    around.garbage = (0..3).map(object).collect();
    around.deletion = Deletion::Denied("403".to_owned());
    around.pass();
    assert_eq!(around.alarms.iter().filter(is_denial).count(), 2, "it was allowed in between");
}

#[test]
fn a_pause_and_a_stop_begin_nothing() {
    let mut around = Around::new(0..5, 0..5);
    around.upkeep.set_paused(true);
    assert_eq!((around.upkeep.wake_at(), around.upkeep.next(around.now)), (None, None));
    around.upkeep.set_paused(false);
    around.pass();
    around.upkeep.stop();
    assert_eq!(around.upkeep.wake_at(), None);
}

#[test]
fn a_large_ledger_is_removed_until_nothing_of_it_is_left() {
    let mut around = Around::new(0..5, 1..5);
    around.removals_left = 3;
    around.pass();
    let removals = around.done.iter().filter(|action| matches!(action, UpkeepAction::Remove(_)));
    assert_eq!((removals.count(), around.upkeep.status().counts.ledgers_removed), (4, 1));
}
