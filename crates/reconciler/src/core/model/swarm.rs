//! Runs of the world in an order, and with faults, drawn from a seed: two tierers that both do everything, or three that share, with crashes at
//! every point.

use bindery_io::canary::TIERER;

use super::*;

/// How likely each kind of fault is in a step.
struct Rates {
    fails: f64,
    lost: f64,
    crashes: f64,
    bookies: f64,
    cuts: f64,
    wiped: f64,
    /// The catalogue is lost, put back from an older copy, or loses a record.
    catalogue: f64,
}

impl Rates {
    fn draw(random: &SeededRandom) -> Rates {
        let is_calm = random.chance(0.1);
        let rate = |most: f64| {
            let is_on = random.chance(0.5) && !is_calm;
            let rate = most * 10f64.powf(-2.0 * (random.below(1000) as f64 / 1000.0));
            if is_on { rate } else { 0.0 }
        };
        Rates {
            fails: rate(0.3),
            lost: rate(0.3),
            crashes: rate(0.02),
            bookies: rate(0.2),
            cuts: rate(0.3),
            wiped: rate(0.5),
            // In one run of four: what follows is no cluster that ends up in order by itself.
            catalogue: if random.chance(0.25) { 0.005 } else { 0.0 },
        }
    }
}

/// What a run went through, so that runs which test nothing are noticed.
#[derive(Debug, Default, Clone, Copy)]
struct Met {
    corrections: u64,
    crashes: u64,
    retries: u64,
    behind: u64,
    timeouts: u64,
    removed: u64,
    deleted: u64,
    doubts: u64,
    rewritten: u64,
    joined: u64,
    spoiled: u64,
    trimmed: u64,
    replaced: u64,
    stopped: u64,
    orphans: u64,
    handed_over: u64,
    unable: u64,
}

/// Two tierers, each of which does everything.
fn run(seed: u64, canaries: Canaries) -> Met {
    run_of(seed, canaries, 2, false)
}

/// Three tierers that share the work. What each knows of the others is old at times.
fn run_sharing(seed: u64, canaries: Canaries) -> Met {
    run_of(seed, canaries, 3, true)
}

fn run_of(seed: u64, canaries: Canaries, tierers: usize, is_shared: bool) -> Met {
    let mut world = World::new(seed, tierers, 5);
    let mut met = Met::default();
    let rates = Rates::draw(&world.random);
    (world.cuts, world.estate.wiped) = (rates.cuts, rates.wiped);
    world.estate.spoils = if world.random.chance(0.5) { 0.5 } else { 0.0 };
    if world.random.chance(0.3) {
        world.settings.updates.mode = updates::UpdateMode::Single;
    }
    if world.random.chance(0.3) {
        world.settings.updates.in_flight_max = 1 + world.random.below(3) as usize;
    }
    world.settings.objects_max = 1 + world.random.below(4) as usize;
    if world.random.chance(0.5) {
        world.settings.upkeep.join_below_bytes = 1 << 20;
    }
    let ledgers = 2 + world.random.below(8) as i64;
    const SHAPES: [(usize, usize, usize); 5] = [(1, 1, 1), (3, 3, 2), (3, 2, 2), (4, 3, 2), (5, 2, 1)];
    for id in 0..ledgers {
        let shape = SHAPES[world.random.below(5) as usize];
        let first = world.random.below(5) as usize;
        let on: Vec<usize> = (0..shape.0).map(|index| (first + index) % 5).collect();
        let entries = world.random.below(40) as i64;
        let is_sealed = world.random.chance(0.5);
        world.add_on(id, entries, is_sealed, shape, &on);
    }
    for tierer in 0..tierers {
        world.start(tierer, canaries);
        if is_shared {
            world.tell_tierers(tierer);
        }
    }
    let mut copies = vec![world.catalogue.clone()];
    for step in 0..1200 {
        if step % 50 == 0 && !world.is_diverged {
            copies.push(world.catalogue.clone());
        }
        if world.random.chance(rates.catalogue) {
            met.replaced += 1;
            match world.random.below(4) {
                // A record is deleted: nobody gets any further, until it is put back.
                0 if world.fault.take().is_none() => world.fault = Some("a record is missing".to_owned()),
                0 => {}
                // A tierer that takes the lost catalogue for an empty one.
                1 => world.replace_catalogue(copies[0].clone()),
                _ => {
                    let at = world.random.below(copies.len() as u64) as usize;
                    world.replace_catalogue(copies[at].clone());
                }
            }
        }
        let fate = match () {
            () if world.random.chance(rates.fails) => Fate::Fails,
            () if world.random.chance(rates.lost) => Fate::AnswerLost,
            () => Fate::Works,
        };
        match world.random.below(26) {
            0..=13 if !world.pending.is_empty() => {
                let index = world.random.below(world.pending.len() as u64) as usize;
                world.deliver(index, fate);
            }
            14 => {
                let (id, entries) =
                    (world.random.below(ledgers as u64) as i64, world.random.below(20) as i64);
                world.grow(id, entries);
            }
            15 if world.random.chance(0.2) => {
                let id = world.random.below(ledgers as u64) as i64;
                world.seal(id);
            }
            16 if world.random.chance(0.2) => {
                let id = world.random.below(ledgers as u64) as i64;
                world.delete_ledger(id);
            }
            18..=21 => {
                let tierer = world.random.below(tierers as u64) as usize;
                world.deliver_upkeep(tierer, fate);
                world.estate.is_denied = world.random.chance(rates.fails);
                if is_shared && world.random.chance(0.02) {
                    world.cut_off = Some(world.random.below(2 * tierers as u64) as usize);
                    world.estate.denied_to = Some(world.random.below(2 * tierers as u64) as usize);
                }
                if world.random.chance(0.2) {
                    world.deliver_stray();
                }
            }
            17 => {
                let id = ledger(world.random.below(ledgers as u64) as i64);
                let name = bookie(world.random.below(5) as usize);
                world.trim(&name, id);
            }
            _ => {
                // Some hours of a bookie's life, in the time of this world.
                let is_long = world.random.chance(0.1);
                let most = Duration::from_millis(1 + world.random.below(if is_long { 8000 } else { 800 }));
                world.pass(most);
            }
        }
        if world.random.chance(rates.crashes) {
            let tierer = world.random.below(tierers as u64) as usize;
            if world.is_alive(tierer) {
                collect(&world, tierer, &mut met);
                world.crash(tierer);
                met.crashes += 1;
            } else {
                world.start(tierer, canaries);
                if is_shared {
                    world.tell_tierers(tierer);
                }
            }
        }
        if is_shared && world.random.chance(0.02) {
            let tierer = world.random.below(tierers as u64) as usize;
            world.tell_tierers(tierer);
        }
        if world.random.chance(rates.bookies) {
            let which = bookie(world.random.below(5) as usize);
            let kind = world.random.below(4);
            let ids: Vec<LedgerId> = world.ledgers.keys().copied().collect();
            let victim = ids[world.random.below(ids.len() as u64) as usize];
            let target = world.bookies.get_mut(&which).unwrap();
            match kind {
                0 => target.is_hanging = !target.is_hanging,
                1 if !target.hangs_on.remove(&victim) => drop(target.hangs_on.insert(victim)),
                1 => {}
                // It comes back without what it was told of one ledger, of which it has copies.
                2 if target.told.get(&victim).is_some_and(|told| told.trimmed.is_some()) => {}
                2 => drop(target.told.remove(&victim)),
                _ => {
                    target.ability = match target.ability {
                        Ability::Reconciles => Ability::Absent,
                        _ => Ability::Reconciles,
                    };
                    // Requests to it are lost.
                    world.pending.retain(|pending| {
                        !matches!(&pending.action, Action::Update(request) if request.bookie == which)
                    });
                    (0..tierers).for_each(|tierer| world.tell_bookies(tierer));
                }
            }
        }
    }
    // Tierers live for a while, and bookies are as they are.
    world.estate.is_denied = false;
    (world.cut_off, world.estate.denied_to) = (None, None);
    world.run(Duration::from_secs(90));
    if world.is_diverged {
        // Longer than any delay: objects without a row, and reservations in vain, have their time. The world checks that nothing is
        // deleted that a bookie needs.
        world.settings.upkeep.rewrite_below = 0.0;
        world.settings.upkeep.join_below_bytes = 0;
        for tierer in 0..tierers {
            if !world.is_alive(tierer) {
                world.start(tierer, canaries);
            }
        }
        world.run_sharing(Duration::from_secs(600), is_shared);
        world.now += 2 * world.settings.reservation_use;
        world.run_sharing(Duration::from_secs(300), is_shared);
        (0..tierers).for_each(|tierer| collect(&world, tierer, &mut met));
        return met;
    }
    world.fault = None;
    // Everybody is well from now on, and all of it ends up where it belongs.
    (world.cuts, world.estate.wiped, world.estate.is_denied) = (0.0, 0.0, false);
    // The newest ledger is one that is there, so that the listing proves itself also without a mark.
    world.add_ledger(ledgers, 5, true);
    for bookie in world.bookies.values_mut() {
        bookie.ability = Ability::Reconciles;
        bookie.is_hanging = false;
        bookie.hangs_on.clear();
    }
    (0..ledgers).for_each(|id| world.seal(id));
    for tierer in 0..tierers {
        match world.is_alive(tierer) {
            true => world.tell_bookies(tierer),
            false => world.start(tierer, canaries),
        }
    }
    // Registers that were lost meanwhile are found at the next visit.
    world.run_sharing(Duration::from_secs(180), is_shared);
    world.assert_complete();
    world.assert_tidy();
    let told = world.bookies.values().flat_map(|bookie| bookie.told.values());
    met.trimmed = told.filter(|told| told.trimmed.is_some()).count() as u64;
    for tierer in 0..tierers {
        collect(&world, tierer, &mut met);
        let status = world.core(tierer).status(world.now);
        assert_eq!(
            (status.watched, status.rounds, status.updates_in_flight),
            (0, 0, 0),
            "nothing is left: {status:?}"
        );
        assert!(world.tierers[tierer].alarms.is_empty(), "{:?}", world.tierers[tierer].alarms);
    }
    met
}

fn collect(world: &World, tierer: usize, met: &mut Met) {
    let status = world.core(tierer).status(world.now);
    met.corrections += status.counts.corrections;
    met.retries += status.counts.commit_retries;
    met.handed_over += status.counts.handed_over;
    met.unable += status.counts.unable;
    met.behind += status.updates.behind;
    met.timeouts += status.updates.timeouts;
    met.spoiled = world.estate.spoiled.len() as u64;
    if let Some(keeper) = &world.tierers[tierer].keeper {
        let counts = keeper.core.status().counts;
        met.removed += counts.ledgers_removed;
        met.deleted += counts.objects_deleted;
        met.doubts += counts.doubts;
        met.rewritten += counts.objects_rewritten;
        met.joined += counts.extents_joined;
        met.orphans += keeper.core.status().scan.orphans_deleted;
        met.stopped += u64::from(keeper.core.status().deletions_stopped.is_some());
    }
}

/// Runs a number of seeds, or the one that the environment names.
fn run_all(seeds: u64, run: fn(u64, Canaries) -> Met) -> Option<Met> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    if let Some(seed) = number("BINDERY_TIER_SEED") {
        println!("seed {seed}: {:?}", run(seed, Canaries::none()));
        return None;
    }
    let mut met = Met::default();
    for seed in 0..number("BINDERY_TIER_SEEDS").unwrap_or(seeds) {
        let of_run = std::panic::catch_unwind(|| run(seed, Canaries::none()));
        let of_run = of_run.unwrap_or_else(|panic| {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(panic)
        });
        met.corrections += of_run.corrections;
        met.crashes += of_run.crashes;
        met.retries += of_run.retries;
        met.behind += of_run.behind;
        met.timeouts += of_run.timeouts;
        met.removed += of_run.removed;
        met.deleted += of_run.deleted;
        met.doubts += of_run.doubts;
        met.rewritten += of_run.rewritten;
        met.joined += of_run.joined;
        met.spoiled += of_run.spoiled;
        met.trimmed += of_run.trimmed;
        met.replaced += of_run.replaced;
        met.stopped += of_run.stopped;
        met.orphans += of_run.orphans;
        met.handed_over += of_run.handed_over;
        met.unable += of_run.unable;
    }
    println!("{met:?}");
    Some(met)
}

#[test]
fn two_tierers_with_crashes_and_faults_keep_the_invariants() {
    let Some(met) = run_all(150, run) else { return };
    assert!(met.corrections > 20 && met.crashes > 20 && met.retries > 20, "the runs meet little: {met:?}");
    assert!(met.removed > 20 && met.deleted > 20 && met.doubts > 20, "the runs meet little: {met:?}");
    assert!(met.behind > 0 && met.timeouts > 20, "the runs meet little: {met:?}");
    assert!(met.rewritten > 20 && met.joined > 20 && met.spoiled > 5, "the runs meet little: {met:?}");
    assert!(met.trimmed > 100, "the runs meet little: {met:?}");
    assert!(met.replaced > 20 && met.stopped > 5 && met.orphans > 5, "the runs meet little: {met:?}");
}

#[test]
fn three_tierers_that_share_leave_nothing_undone() {
    let Some(met) = run_all(150, run_sharing) else { return };
    assert!(met.handed_over > 20 && met.crashes > 20 && met.corrections > 0, "the runs meet little: {met:?}");
    assert!(met.removed > 20 && met.deleted > 20 && met.rewritten > 5, "the runs meet little: {met:?}");
    assert!(met.trimmed > 50 && met.replaced > 10, "the runs meet little: {met:?}");
    assert!(met.unable > 5, "the runs meet little: {met:?}");
}

#[test]
fn a_seed_repeats_exactly() {
    for seed in 0..5 {
        assert_eq!(
            format!("{:?}", run(seed, Canaries::none())),
            format!("{:?}", run(seed, Canaries::none()))
        );
    }
}

/// All but T2, which needs a catalogue that was put back, as in the script of the crash matrix.
#[test]
fn every_canary_of_updates_is_found() {
    for (name, canary) in TIERER.into_iter().filter(|(name, _)| *name != "T2") {
        let is_found = |seed: &u64| {
            let hook = std::panic::take_hook();
            std::panic::set_hook(Box::new(|_| {}));
            let run_it = if name == "T20" { run_sharing } else { run };
            let outcome = std::panic::catch_unwind(|| run_it(*seed, Canaries::only(canary)));
            std::panic::set_hook(hook);
            // By the invariant that it breaks, not by anything else.
            outcome.is_err_and(|panic| {
                let breaks = |text: &String| ["IT1", "IT2", "IT5"].iter().any(|rule| text.starts_with(rule));
                let text = panic.downcast_ref::<String>();
                let is_undone = |text: &String| name == "T20" && text.contains("failed: IT8");
                text.is_some_and(|text| breaks(text) || is_undone(text))
            })
        };
        // Most seeds miss these, so the search tries the seeds that found them first. After a change of the model those are seeds like any
        // other.
        let found = [("T13b", 31), ("T20", 57)].into_iter().find(|(known, _)| *known == name);
        let mut seeds = found.map(|(_, seed)| seed).into_iter().chain(0..300);
        let seed = seeds.find(is_found).unwrap_or_else(|| panic!("{name} is not found in 300 seeds"));
        println!("canary {name} found at seed {seed}");
    }
}
