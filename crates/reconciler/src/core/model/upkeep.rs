//! The upkeep in the world: a metadata store that may answer as an empty one, deletions that arrive late or twice, and the
//! check that nothing goes that somebody refers to, and everything else does (T13, T17).

use super::*;
use crate::core::upkeep::{
    Deletion, ListedObject, Proof, ScanPage, ScannedRow, Upkeep, UpkeepAction, UpkeepEvent,
};

/// The upkeep of one tierer.
pub(super) struct Keeper {
    pub core: Upkeep,
    /// The action under way, with its answer once it has arrived.
    pub work: Option<(UpkeepAction, Option<UpkeepEvent>)>,
    /// In this pass the metadata store shows no ledger, no mark, and gives out ids from 0 on.
    is_wiped: bool,
    /// Ledgers of the listing that come next.
    listed: Vec<LedgerId>,
    pub alarms: Vec<Alarm>,
}

/// What of the world only the upkeep touches.
#[derive(Debug, Default)]
pub(super) struct Estate {
    /// How likely a pass finds a metadata store that has lost everything.
    pub wiped: f64,
    /// The mark in the metadata store, and those that the bucket knows.
    mark: Option<u64>,
    marks_known: Vec<u64>,
    /// Actions of tierers that died, which may arrive.
    pub strays: Vec<UpkeepAction>,
    /// Rows that were forgotten.
    pub forgotten: BTreeSet<ObjectId>,
    /// Deletions are refused.
    pub is_denied: bool,
}

impl World {
    pub(super) fn new_keeper(&self, canaries: Canaries) -> Keeper {
        let core = Upkeep::new(self.now, self.settings.upkeep.clone(), CLUSTER.to_string(), canaries);
        Keeper { core, work: None, is_wiped: false, listed: Vec::new(), alarms: Vec::new() }
    }

    /// Deletes a ledger from metadata.
    pub(super) fn delete_ledger(&mut self, id: i64) {
        self.ledgers.get_mut(&ledger(id)).unwrap().is_deleted = true;
    }

    /// Begins what the upkeep of this tierer has to do.
    pub(super) fn keep_up(&mut self, tierer: usize) {
        let now = self.now;
        if let Some(keeper) = &mut self.tierers[tierer].keeper
            && keeper.work.is_none()
        {
            keeper.work = keeper.core.next(now).map(|action| (action, None));
        }
    }

    /// The upkeep of a tierer that dies: its last request may still arrive.
    pub(super) fn crash_keeper(&mut self, tierer: usize) {
        if let Some(keeper) = self.tierers[tierer].keeper.take()
            && let Some((action, None)) = keeper.work
        {
            self.estate.strays.push(action);
        }
    }

    /// Takes the action under way one step further. False: there is none.
    pub(super) fn deliver_upkeep(&mut self, tierer: usize, fate: Fate) -> bool {
        let Some(keeper) = &mut self.tierers[tierer].keeper else { return false };
        match keeper.work.take() {
            None => return false,
            Some((_, Some(event))) => {
                let mut alarms = Vec::new();
                keeper.core.on_event(self.now, event, &mut alarms);
                keeper.alarms.extend(alarms);
                self.keep_up(tierer);
            }
            Some((action, None)) => {
                let event = self.arrive_upkeep(Some(tierer), &action, fate);
                let keeper = self.tierers[tierer].keeper.as_mut().unwrap();
                keeper.work = Some((action, Some(event)));
            }
        }
        self.check();
        true
    }

    /// An action of a tierer that died arrives after all.
    pub(super) fn deliver_stray(&mut self) {
        if let Some(action) = self.estate.strays.pop() {
            self.arrive_upkeep(None, &action, Fate::Works);
            self.check();
        }
    }

    pub(super) fn arrive_upkeep(
        &mut self,
        tierer: Option<usize>,
        action: &UpkeepAction,
        fate: Fate,
    ) -> UpkeepEvent {
        let failed = || "it failed".to_owned();
        let is_lost = fate != Fate::Works;
        let facts = Facts::nothing_below();
        let draws = self.random.chance(self.estate.wiped);
        let mut keeper = tierer.and_then(|tierer| self.tierers[tierer].keeper.as_mut());
        if let (Some(keeper), UpkeepAction::Ledgers) = (&mut keeper, action) {
            keeper.is_wiped = draws;
        }
        let is_wiped = keeper.is_some_and(|keeper| keeper.is_wiped);
        match action {
            UpkeepAction::Ledgers => UpkeepEvent::Ledgers(match is_lost {
                true => Err(failed()),
                false => {
                    Ok((self.catalogue.ledgers_in_tail()).filter_map(|(id, row)| row.map(|_| id)).collect())
                }
            }),
            UpkeepAction::Prove => UpkeepEvent::Proven(match is_lost {
                true => Err(failed()),
                false => Ok(Proof {
                    instance_id: CLUSTER.to_string(),
                    is_whole: true,
                    has_mark: !is_wiped
                        && self.estate.mark.is_some_and(|mark| self.estate.marks_known.contains(&mark)),
                    next_id: match is_wiped {
                        true => LedgerId::new(0),
                        false => {
                            self.ledgers.keys().next_back().and_then(|last| LedgerId::new(last.get() + 1))
                        }
                    },
                }),
            }),
            UpkeepAction::List { is_first } => {
                let is_there = |(_, ghost): &(&LedgerId, &Ghost)| !ghost.is_deleted;
                let all: Vec<LedgerId> = match is_wiped {
                    true => Vec::new(),
                    false => self.ledgers.iter().filter(is_there).map(|(id, _)| *id).collect(),
                };
                let Some(keeper) = tierer.and_then(|tierer| self.tierers[tierer].keeper.as_mut()) else {
                    return UpkeepEvent::Listed(Err(failed()));
                };
                if *is_first {
                    keeper.listed = all;
                }
                let page: Vec<LedgerId> = keeper.listed.drain(..keeper.listed.len().min(3)).collect();
                UpkeepEvent::Listed(match () {
                    () if is_lost => Err(failed()),
                    () => Ok((!page.is_empty()).then_some(page)),
                })
            }
            UpkeepAction::LookAgain(ledgers) => UpkeepEvent::LookedAgain(match is_lost {
                true => Err(failed()),
                false => Ok(ledgers
                    .iter()
                    .filter(|id| is_wiped || self.ledgers[*id].is_deleted)
                    .copied()
                    .collect()),
            }),
            UpkeepAction::Remove(ledgers) => {
                let removed = match fate {
                    Fate::Fails => Vec::new(),
                    Fate::Works | Fate::AnswerLost => {
                        let changes = ledgers.iter().map(|id| Change::RemoveLedger(*id)).collect();
                        let outcomes = self.record(changes).into_iter();
                        let left = |outcome| match outcome {
                            ChangeOutcome::LedgerRemoved { left, .. } => left,
                            other => panic!("{other:?}"),
                        };
                        ledgers.iter().copied().zip(outcomes.map(left)).collect()
                    }
                };
                UpkeepEvent::Removed(if is_lost { Err(failed()) } else { Ok(removed) })
            }
            UpkeepAction::Mark => {
                if fate != Fate::Fails {
                    let new = self.random.below(u64::MAX);
                    self.estate.marks_known = vec![new];
                    // The store that has lost everything gets it, and not the real one.
                    if !is_wiped {
                        self.estate.mark = Some(new);
                    }
                }
                UpkeepEvent::Marked(if is_lost { Err(failed()) } else { Ok(()) })
            }
            UpkeepAction::FindGarbage { delay, limit } => {
                let totals = self.catalogue.totals();
                let expired = self.catalogue.position().log_ms + self.ttl_ms();
                if totals.reserved > 0 && u128::from(expired) <= self.now.as_millis() {
                    self.record(Vec::new());
                }
                let before = (self.now - *delay).as_millis() as u64;
                let log_ms = self.catalogue.position().log_ms;
                let garbage = self.catalogue.objects_in_tail().filter(|(_, row)| {
                    row.and_then(|row| row.garbage_since_ms(log_ms)).is_some_and(|since| since <= before)
                });
                let found = garbage.map(|(id, _)| id).take(*limit).collect();
                UpkeepEvent::Garbage(if is_lost { Err(failed()) } else { Ok(found) })
            }
            UpkeepAction::Delete(objects) => {
                let delete = |object: &ObjectId| {
                    let outcome = match fate {
                        _ if self.estate.is_denied => Deletion::Denied(failed()),
                        Fate::Works => Deletion::Done,
                        Fate::Fails | Fate::AnswerLost => Deletion::Failed(failed()),
                    };
                    if fate != Fate::Fails && !self.estate.is_denied {
                        self.bucket.remove(object);
                    }
                    (*object, outcome)
                };
                UpkeepEvent::Deleted(objects.iter().map(delete).collect())
            }
            UpkeepAction::Forget(objects) => {
                if fate != Fate::Fails {
                    self.record(objects.iter().copied().map(Change::ForgetObject).collect());
                    for object in objects {
                        if self.catalogue.object(&facts, *object).unwrap().is_none() {
                            self.estate.forgotten.insert(*object);
                        }
                    }
                }
                UpkeepEvent::Forgotten(if is_lost { Err(failed()) } else { Ok(objects.len() as u64) })
            }
            UpkeepAction::Scan { after } => {
                // Pages of four objects.
                let behind = |id: &ObjectId| Some(*id) > *after;
                let ids: Vec<ObjectId> =
                    self.bucket.keys().filter(|id| behind(id)).copied().take(4).collect();
                let next = ids.last().copied().filter(|_| ids.len() == 4);
                let listed = |id: &ObjectId| ListedObject {
                    object: *id,
                    modified_ms: self.written[id].as_millis() as u64,
                    length_bytes: self.bucket[id].object.length_bytes,
                };
                let rows = self.catalogue.objects_in_tail().filter_map(|(object, row)| {
                    let is_in = behind(&object) && next.is_none_or(|next| object <= next);
                    let live_bytes = match row? {
                        ObjectRow::Stored(stored) if stored.live_extents > 0 => {
                            Some(stored.object.length_bytes)
                        }
                        ObjectRow::Stored(_) | ObjectRow::Reserved { .. } => None,
                    };
                    is_in.then_some(ScannedRow { object, live_bytes })
                });
                let page = ScanPage {
                    objects: ids.iter().map(listed).collect(),
                    rows: rows.collect(),
                    next,
                    now_ms: self.now.as_millis() as u64,
                };
                UpkeepEvent::Scanned(if is_lost { Err(failed()) } else { Ok(page) })
            }
            UpkeepAction::AskFor(objects) => {
                let is_missing = |(id, _): &&(ObjectId, u64)| !self.bucket.contains_key(id);
                let missing = objects.iter().filter(is_missing).map(|(id, _)| *id).collect();
                UpkeepEvent::Missing(if is_lost { Err(failed()) } else { Ok(missing) })
            }
            UpkeepAction::DeleteOrphans(objects) => {
                if fate != Fate::Fails {
                    objects.iter().for_each(|object| drop(self.bucket.remove(object)));
                }
                let outcome = if is_lost { Deletion::Failed(failed()) } else { Deletion::Done };
                UpkeepEvent::OrphansDeleted(objects.iter().map(|object| (*object, outcome.clone())).collect())
            }
        }
    }

    /// Nothing is left of deleted ledgers, and nothing in the bucket that is of no use for longer than the delay.
    pub(super) fn assert_tidy(&self) {
        let facts = Facts::nothing_below();
        for (id, _) in self.ledgers.iter().filter(|(_, ghost)| ghost.is_deleted) {
            assert_eq!(
                self.catalogue.ledger(&facts, *id).unwrap(),
                None,
                "T17: ledger {id} is in the catalogue"
            );
        }
        let log_ms = self.catalogue.position().log_ms;
        let before =
            (self.now - self.settings.upkeep.delete_delay - 2 * self.settings.upkeep.interval).as_millis();
        for (id, row) in self.catalogue.objects_in_tail() {
            let since = row.and_then(|row| row.garbage_since_ms(log_ms));
            assert!(
                since.is_none_or(|since| u128::from(since) > before),
                "T13: the row of {id} stays: {row:?}"
            );
        }
        for id in self.bucket.keys() {
            let row = self.catalogue.object(&facts, *id).unwrap();
            assert!(row.is_some(), "T13: object {id} stays without a row");
        }
    }
}
