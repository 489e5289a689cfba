//! The upkeep in the world: a metadata store that may answer as an empty one, deletions that arrive late or twice, and the
//! check that nothing goes that somebody refers to, and everything else does (T13, T17).

use super::*;
use crate::core::upkeep::{
    Absent, Deletion, Fault, Garbage, ListedObject, LiveExtent, Moved, Orphan, Proof, ScanPage, ScannedRow,
    SourceError, Survey, Upkeep, UpkeepAction, UpkeepEvent, Whereabouts,
};

/// The upkeep of one tierer.
#[derive(Debug, Clone)]
pub(super) struct Keeper {
    pub core: Upkeep,
    /// The action under way, with its answer once it has arrived.
    pub work: Option<(UpkeepAction, Option<UpkeepEvent>)>,
    /// In this pass the metadata store shows no ledger, no mark, and gives out ids from 0 on.
    pub is_wiped: bool,
    /// Ledgers of the listing that come next.
    pub listed: Vec<LedgerId>,
    pub alarms: Vec<Alarm>,
}

/// Actions of a kind.
pub(super) type ActionKind = fn(&UpkeepAction) -> bool;

/// What of the world only the upkeep touches.
#[derive(Debug, Clone, Default)]
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
    /// Deletions are refused to all tierers,
    pub is_denied: bool,
    /// or to this one.
    pub denied_to: Option<usize>,
    /// What this tierer asks for of this kind fails.
    pub failing: Option<(usize, ActionKind)>,
    /// How likely an object that is rewritten has other entries than its sources, without anything that says so.
    pub spoils: f64,
    /// Those that have.
    pub spoiled: BTreeSet<ObjectId>,
}

impl World {
    pub(super) fn new_keeper(&self, canaries: Canaries) -> Keeper {
        let target = self.settings.target_bytes();
        let core = Upkeep::new(self.now, self.settings.upkeep.clone(), target, CLUSTER.to_string(), canaries);
        let (listed, alarms) = (Vec::new(), Vec::new());
        Keeper { core, work: None, is_wiped: false, listed, alarms }
    }

    fn is_denied(&self, tierer: Option<usize>) -> bool {
        self.estate.is_denied || (tierer.is_some() && tierer == self.estate.denied_to)
    }

    fn is_failing(&self, tierer: Option<usize>, action: &UpkeepAction) -> bool {
        self.estate.failing.is_some_and(|(of, is_it)| tierer == Some(of) && is_it(action))
    }

    /// Deletes a ledger from metadata.
    pub(super) fn delete_ledger(&mut self, id: i64) {
        self.ledgers.get_mut(&ledger(id)).unwrap().is_deleted = true;
    }

    /// Begins what the upkeep of this tierer has to do.
    pub(super) fn keep_up(&mut self, tierer: usize) {
        let now = self.now;
        let fault = self.fault.clone();
        let Tierer { core, keeper, .. } = &mut *self.tierers[tierer];
        if let Some(keeper) = keeper {
            let of_ledgers = core.as_ref().and_then(Core::doubt_of_ledgers);
            let unknown = core.as_ref().and_then(Core::unknown_doubt);
            let missing = core.as_ref().map_or((None, &[][..]), Core::missing_elsewhere);
            keeper.core.set_doubts(now, fault.as_deref(), of_ledgers, missing, unknown);
            if let Some(core) = core {
                keeper.core.set_team(core.team());
            }
            keeper.alarms.extend(keeper.core.take_alarms());
        }
        let reborn = self.tierers[tierer].core.as_ref().map(|core| core.reborn().clone()).unwrap_or_default();
        if let Some(keeper) = &mut self.tierers[tierer].keeper
            && keeper.work.is_none()
        {
            keeper.core.set_reborn(&reborn);
            keeper.work = keeper.core.next(now).map(|action| (action, None));
        }
    }

    /// Another catalogue takes the place of this one, and tierers read it from its beginning.
    pub(super) fn replace_catalogue(&mut self, catalogue: Part<Catalogue>) {
        (self.catalogue, self.was_put_back, self.is_diverged) = (catalogue, true, true);
        for tierer in 0..self.tierers.len() {
            if let Some(keeper) = &mut self.tierers[tierer].keeper {
                keeper.core.on_catalogue_replaced();
            }
            self.event(tierer, Event::CatalogueReplaced);
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
        let is_cut_off = tierer.is_some() && tierer == self.cut_off;
        let asks_the_bucket = matches!(
            action,
            UpkeepAction::TryDeletion
                | UpkeepAction::Delete(_)
                | UpkeepAction::ReadFooters(_)
                | UpkeepAction::Rewrite(_)
        );
        let fate = match self.fault {
            Some(_) if asks_the_catalogue(action) => Fate::Fails,
            _ if self.is_failing(tierer, action) => Fate::Fails,
            _ if is_cut_off && (asks_the_bucket || asks_the_catalogue(action)) => Fate::Fails,
            _ => fate,
        };
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
                    .map(|id| self.place(*id))
                    .filter(|Place { ledger, created_ms, .. }| {
                        let ghost = &self.ledgers[ledger];
                        is_wiped || ghost.is_deleted || ghost.creation().is_anothers(*created_ms)
                    })
                    .map(|Place { ledger, created_ms, .. }| Absent { ledger, created_ms })
                    .collect()),
            }),
            UpkeepAction::Remove(ledgers) => {
                let removed = match fate {
                    Fate::Fails => Vec::new(),
                    Fate::Works | Fate::AnswerLost => {
                        let removal = |absent: &Absent| Change::RemoveLedger {
                            ledger: absent.ledger,
                            created_ms: absent.created_ms,
                        };
                        let changes = ledgers.iter().map(removal).collect();

                        let outcomes = self.record(changes).into_iter();
                        let left = |outcome| match outcome {
                            ChangeOutcome::LedgerRemoved { left, .. } => left,
                            other => panic!("{other:?}"),
                        };
                        ledgers.iter().map(|absent| absent.ledger).zip(outcomes.map(left)).collect()
                    }
                };
                UpkeepEvent::Removed(if is_lost { Err(failed()) } else { Ok(removed) })
            }
            UpkeepAction::Mark => {
                if fate != Fate::Fails {
                    self.ids += 1;
                    let new = self.ids;
                    self.estate.marks_known = vec![new];
                    // The store that has lost everything gets it, and not the real one.
                    if !is_wiped {
                        self.estate.mark = Some(new);
                    }
                }
                UpkeepEvent::Marked(if is_lost { Err(failed()) } else { Ok(()) })
            }
            UpkeepAction::FindGarbage { delay, after, limit } => {
                let totals = self.catalogue.totals();
                let expired = self.catalogue.position().log_ms + self.ttl_ms();
                if totals.reserved > 0 && u128::from(expired) <= self.now.as_millis() {
                    self.record(Vec::new());
                }
                let before = (self.now - *delay).as_millis() as u64;
                let log_ms = self.catalogue.position().log_ms;
                let is_due =
                    |row: &ObjectRow| row.garbage_since_ms(log_ms).is_some_and(|since| since <= before);
                let rows = self.catalogue.objects_in_tail().filter(|(id, _)| Some(*id) > *after);
                let garbage = rows.filter_map(|(id, row)| Some((id, row.filter(is_due)?)));
                let found = garbage.map(|(id, row)| Garbage::new(id, &row)).take(*limit).collect();
                UpkeepEvent::Garbage(if is_lost { Err(failed()) } else { Ok(found) })
            }
            UpkeepAction::TryDeletion => UpkeepEvent::DeletionTried(match fate {
                _ if self.is_denied(tierer) => Deletion::Denied(failed()),
                Fate::Works => Deletion::Done,
                Fate::Fails | Fate::AnswerLost => Deletion::Failed(failed()),
            }),
            UpkeepAction::Delete(objects) => {
                let is_denied = self.is_denied(tierer);
                let delete = |object: &ObjectId| {
                    let outcome = match fate {
                        _ if is_denied => Deletion::Denied(failed()),
                        Fate::Works => Deletion::Done,
                        Fate::Fails | Fate::AnswerLost => Deletion::Failed(failed()),
                    };
                    if fate != Fate::Fails && !is_denied {
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
                    is_in.then_some(ScannedRow::new(object, &row?))
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
                let rows: BTreeMap<ObjectId, Option<ObjectRow>> = self.catalogue.objects_in_tail().collect();
                let is_live = |id: &ObjectId| {
                    rows.get(id)
                        .copied()
                        .flatten()
                        .is_some_and(|row| ScannedRow::new(*id, &row).live.is_some())
                };
                let is_missing = |(id, _): &&(ObjectId, u64)| !self.bucket.contains_key(id) && is_live(id);
                let missing = objects.iter().filter(is_missing).map(|(id, _)| *id).collect();
                UpkeepEvent::Missing(if is_lost { Err(failed()) } else { Ok(missing) })
            }
            UpkeepAction::ReadFooters(objects) => {
                let read = |(object, _): &(ObjectId, u64)| {
                    let error = |why: String, fault| Err(SourceError { why, fault });
                    let outcome = match self.bucket.get(object) {
                        _ if is_lost => error(failed(), Fault::Passing),
                        None => error("it is gone".to_owned(), Fault::Gone),
                        Some(new) => {
                            let ledgers: BTreeSet<LedgerId> =
                                new.extents.iter().map(|extent| extent.ledger).collect();
                            let (object, extents) = (new.object, new.extents.len() as u32);
                            Ok(Orphan { object, extents, ledgers: ledgers.into_iter().collect() })
                        }
                    };
                    (*object, outcome)
                };
                UpkeepEvent::FootersRead(objects.iter().map(read).collect())
            }
            _ => self.arrive_rewriting(action, fate),
        }
    }

    /// The actions that concern objects that are rewritten.
    fn arrive_rewriting(&mut self, action: &UpkeepAction, fate: Fate) -> UpkeepEvent {
        let failed = || "it failed".to_owned();
        let is_lost = fate != Fate::Works;
        match action {
            UpkeepAction::WhereTo(object, places) => {
                UpkeepEvent::Whereabouts(match self.bucket.get(&object.id) {
                    None if !is_lost => Err(SourceError { why: "it is gone".to_owned(), fault: Fault::Gone }),
                    Some(new) if !is_lost => {
                        let mut found = Whereabouts { extents: new.extents.len(), ..Whereabouts::default() };
                        for place in places {
                            let extent = &new.extents[*place as usize];
                            match self.where_to(object.id, extent) {
                                Some(moved) => found.moved.push(moved),
                                None if self.ledgers[&extent.ledger].is_deleted => {
                                    found.absent.push(extent.ledger);
                                }
                                // Another ledger has the id.
                                None => {}
                            }
                        }
                        Ok(found)
                    }
                    _ => Err(SourceError { why: failed(), fault: Fault::Passing }),
                })
            }
            UpkeepAction::Survey { objects, .. } => {
                let survey = |object: &ObjectRef| -> Survey {
                    let live = if is_lost { None } else { self.live_extents(object) };
                    let why = || SourceError { why: failed(), fault: Fault::Passing };
                    (*object, live.ok_or_else(why))
                };
                UpkeepEvent::Surveyed(objects.iter().map(survey).collect())
            }
            UpkeepAction::Reserve => {
                let objects = self.draw(1);
                if fate != Fate::Fails {
                    self.commit(&[], &objects);
                }
                let is_later = |(id, row): (ObjectId, Option<ObjectRow>)| {
                    (id > objects[0] && matches!(row, Some(ObjectRow::Stored(_)))).then_some(id)
                };
                let later = self.catalogue.objects_in_tail().find_map(is_later);
                UpkeepEvent::Reserved(if is_lost { Err(failed()) } else { Ok((objects[0], later)) })
            }
            UpkeepAction::Rewrite(order) => UpkeepEvent::Rewritten(self.rewrite(order, fate), Vec::new()),
            UpkeepAction::Replace { object, sources } => {
                let outcome = (fate != Fate::Fails).then(|| {
                    self.record(vec![Change::Replace { object: object.clone(), sources: sources.clone() }])
                });
                UpkeepEvent::Replaced(match (fate, outcome.as_deref()) {
                    (Fate::Works, Some([ChangeOutcome::Committed(outcome)])) => Ok(outcome.clone()),
                    _ => Err(failed()),
                })
            }
            other => unreachable!("it is none of rewriting: {other:?}"),
        }
    }

    fn where_to(&self, object: ObjectId, extent: &NewExtent) -> Option<Moved> {
        let NewExtent { ledger, first, last, created_ms, .. } = *extent;
        let row = self.catalogue.ledger(&Facts::nothing_below(), ledger).unwrap();
        let row = row.filter(|row| !row.is_removed);
        let ghost = &self.ledgers[&ledger];
        let is_another = !ghost.is_deleted && ghost.creation().is_anothers(created_ms);
        let is_of_ghost = row.is_none_or(|row| !ghost.creation().is_anothers(row.created_ms));
        if (is_another && is_of_ghost) || (row.is_none() && ghost.is_deleted) {
            return None;
        }
        let mut extents =
            if row.is_some() { self.extents_from(ledger, first, usize::MAX) } else { Vec::new() };
        extents.retain(|extent| extent.first <= last && self.bucket.contains_key(&extent.object.id));
        let spoiled = &self.estate.spoiled;
        let is_spoiled = extents.iter().any(|extent| spoiled.contains(&extent.object.id));
        let differs = (is_spoiled && !spoiled.contains(&object)).then(|| "it has other entries".to_owned());
        Some(Moved { ledger, first, last, extents, differs })
    }

    /// Whether the object is kept because other ones do not have what they should have of it.
    fn is_kept(&self, object: ObjectId) -> bool {
        let extents = self.bucket.get(&object).into_iter().flat_map(|new| &new.extents);
        extents.filter_map(|extent| self.where_to(object, extent)).any(|moved| moved.differs.is_some())
    }

    fn live_extents(&self, object: &ObjectRef) -> Option<Vec<LiveExtent>> {
        let mut live = Vec::new();
        for extent in &self.bucket.get(&object.id)?.extents {
            let NewExtent { ledger, first, last, bytes, .. } = *extent;
            let found = self.extents_from(ledger, first, 1);
            if !found.iter().any(|extent| extent.first == first && extent.object.id == object.id) {
                continue;
            }
            let ghost = Some(&self.ledgers[&ledger]).filter(|ghost| !ghost.is_deleted)?;
            live.push(LiveExtent { ledger, first, last, bytes, metadata: Arc::new(ghost.metadata.clone()) });
        }
        Some(live)
    }

    fn rewrite(&mut self, order: &crate::core::upkeep::RewriteOrder, fate: Fate) -> Built {
        let id = order.order.object;
        self.begun.insert(id);
        let (mut extents, mut left) = (Vec::new(), Vec::new());
        let mut is_full = false;
        for (wanted, pieces) in order.order.ledgers.iter().zip(&order.pieces) {
            let BuildLedger { ledger, first, last, bytes, .. } = *wanted;
            let ends = (pieces.first().unwrap().first, pieces.last().unwrap().last);
            assert_eq!(ends, (first, last), "T16: the pieces are the range");
            let is_there = pieces.iter().all(|piece| {
                let extent = TierExtent { first: piece.first, last: piece.last, object: piece.object };
                has_extent(&self.bucket, ledger, &extent)
            });
            // Another tierer may have rewritten and deleted them.
            if !is_there || self.random.chance(self.cuts) {
                left.push((ledger, Left::Unread("it cannot be read".into())));
                continue;
            }
            is_full |= !extents.is_empty() && self.random.chance(self.cuts / 4.0);
            if is_full {
                left.push((ledger, Left::Full));
                continue;
            }
            extents.push(NewExtent { ledger, first, last, bytes, created_ms: None });
        }
        let bytes: u64 = extents.iter().map(|extent| extent.bytes).sum();
        let object = ObjectRef {
            id,
            length_bytes: bytes + 1000,
            footer_offset: bytes,
            footer_crc: self.ids as u32,
            etag_crc: 1,
        };
        let mut pieces = order.pieces.iter().flatten();
        let is_of_spoiled = pieces.any(|piece| self.estate.spoiled.contains(&piece.object.id));
        if is_of_spoiled || self.random.chance(self.estate.spoils) {
            self.estate.spoiled.insert(id);
        }
        let new = (!extents.is_empty()).then_some(NewObject { object, extents });
        if let Some(new) = new.clone().filter(|_| fate != Fate::Fails) {
            self.written.insert(id, self.now);
            assert_eq!(self.bucket.insert(id, new), None, "T5: an id is used once");
        }
        let outcome = if fate == Fate::Works { Ok(new) } else { Err("the upload failed".into()) };
        Built { outcome, left, times: BuildTimes::default() }
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
                since.is_none_or(|since| u128::from(since) > before) || self.is_kept(id),
                "T13: the row of {id} stays: {row:?}"
            );
        }
        for id in self.bucket.keys() {
            let row = self.catalogue.object(&facts, *id).unwrap();
            assert!(row.is_some() || self.is_kept(*id), "T13: object {id} stays without a row");
        }
    }
}

/// Whether it fails while the catalogue cannot be followed.
fn asks_the_catalogue(action: &UpkeepAction) -> bool {
    match action {
        UpkeepAction::Prove
        | UpkeepAction::List { .. }
        | UpkeepAction::LookAgain(_)
        | UpkeepAction::Mark
        | UpkeepAction::TryDeletion
        | UpkeepAction::Delete(_)
        | UpkeepAction::ReadFooters(_)
        | UpkeepAction::Rewrite(_) => false,
        UpkeepAction::Ledgers
        | UpkeepAction::Remove(_)
        | UpkeepAction::FindGarbage { .. }
        | UpkeepAction::Forget(_)
        | UpkeepAction::Scan { .. }
        | UpkeepAction::AskFor(_)
        | UpkeepAction::WhereTo(..)
        | UpkeepAction::Survey { .. }
        | UpkeepAction::Reserve
        | UpkeepAction::Replace { .. } => true,
    }
}
