//! Which faults the simulated disk may have, how often, and what damage they left.
//!
//! # Invariants
//! 1. Every kind draws from a generator of its own, so that switching one on does not shift the others.
//! 2. Damage to the medium (not mere errors) is written down, so that a checker knows which copies are bad.

use bindery_io::SeededRandom;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

macro_rules! faults {
    ($($(#[$doc:meta])* $kind:ident $field:ident,)*) => {
        /// A kind of disk fault.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum FaultKind {
            $($(#[$doc])* $kind,)*
        }

        impl FaultKind {
            /// All kinds.
            pub const ALL: &'static [FaultKind] = &[$(FaultKind::$kind),*];

            /// Name for logs and generators.
            pub fn name(self) -> &'static str {
                match self {
                    $(FaultKind::$kind => stringify!($field),)*
                }
            }
        }

        /// Probability of each kind, for each operation that can have it. The default has no faults.
        #[derive(Debug, Clone, Default, PartialEq)]
        pub struct FaultPlan {
            $($(#[$doc])* pub $field: f64,)*
        }

        impl FaultPlan {
            /// The probability of one kind.
            pub fn rate(&self, kind: FaultKind) -> f64 {
                match kind {
                    $(FaultKind::$kind => self.$field,)*
                }
            }

            /// Sets the probability of one kind.
            pub fn set_rate(&mut self, kind: FaultKind, rate: f64) {
                match kind {
                    $(FaultKind::$kind => self.$field = rate,)*
                }
            }
        }
    };
}

faults! {
    /// A read fails once with an I/O error.
    ReadError read_error,
    /// A read finds a page that cannot be read until it is written again.
    LatentReadError latent_read_error,
    /// A read finds 1 to 64 bits in a row inverted, for good.
    BitRot bit_rot,
    /// A read returns, once, the content of a page from before it was last overwritten and synced: a file that was used
    /// again shows its former use.
    StaleRead stale_read,
    /// A read returns less than there is.
    ShortRead short_read,
    /// A write fails with an I/O error after part of it went in.
    WriteError write_error,
    /// A write takes less than it was given.
    ShortWrite short_write,
    /// A write is reported as done, also by a sync, and never reaches the medium.
    LostWrite lost_write,
    /// A write goes, whole, to another aligned place of its file or of one in the same directory.
    MisdirectedWrite misdirected_write,
    /// F1: a sync fails with an I/O error; the cache shows the new data until a restart, the medium has little of it.
    SyncErrorNewData sync_error_new_data,
    /// F2: a sync fails with an I/O error; the cache shows the old data.
    SyncErrorOldData sync_error_old_data,
    /// F3: a sync works; the next one, on the file or one in the same directory, fails as F1.
    SyncErrorNext sync_error_next,
    /// F4: a sync fails for want of space; otherwise as F1.
    SyncNoSpace sync_no_space,
    /// Opening, creating, renaming or removing fails with an I/O error and changes nothing.
    NameError name_error,
    /// A sync of a directory fails with an I/O error; some of its changes never become durable.
    SyncDirError sync_dir_error,
}

impl FaultKind {
    /// True when the medium lies or loses what it had acknowledged: such faults need a budget, because no bookie can
    /// keep a promise alone when its only copy is damaged.
    pub fn is_media_damage(self) -> bool {
        use FaultKind as F;
        matches!(self, F::LatentReadError | F::BitRot | F::StaleRead | F::LostWrite | F::MisdirectedWrite)
    }
}

impl FaultPlan {
    /// Draws a plan for one run: of ten runs one has no faults and one has a single kind; else each kind is on with
    /// probability one half. Rates are log-uniform between 1e-4 and 3e-2. Kinds that damage the medium are left out
    /// unless `with_damage`.
    pub fn draw(random: &SeededRandom, with_damage: bool) -> FaultPlan {
        let kinds: Vec<FaultKind> =
            FaultKind::ALL.iter().copied().filter(|kind| with_damage || !kind.is_media_damage()).collect();
        FaultPlan::draw_of(random, &kinds)
    }

    /// As `draw`, of the kinds that damage the medium only, five times as often: few files may have them. The other kinds
    /// of `self` stay.
    pub fn with_drawn_damage(mut self, random: &SeededRandom) -> FaultPlan {
        let kinds: Vec<FaultKind> =
            FaultKind::ALL.iter().copied().filter(|kind| kind.is_media_damage()).collect();
        let damage = FaultPlan::draw_of(random, &kinds);
        kinds.into_iter().for_each(|kind| self.set_rate(kind, 5.0 * damage.rate(kind)));
        self
    }

    fn draw_of(random: &SeededRandom, kinds: &[FaultKind]) -> FaultPlan {
        let mut plan = FaultPlan::default();
        let rate = |name: &str| 10f64.powf(-4.0 + random.child(name).unit() * 2.5);
        match random.below(10) {
            0 => {}
            1 => {
                let only = kinds[random.below(kinds.len() as u64) as usize];
                plan.set_rate(only, rate(only.name()));
            }
            _ => {
                for &kind in kinds {
                    if random.child(kind.name()).child("on").chance(0.5) {
                        plan.set_rate(kind, rate(kind.name()));
                    }
                }
            }
        }
        plan
    }
}

/// Bytes of a file that the medium holds wrongly.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The kind of fault.
    pub kind: FaultKind,
    /// The file, by the name under which it was opened.
    pub path: PathBuf,
    /// Which bytes.
    pub bytes: Range<u64>,
}

/// The plan with its generators, and faults ordered by a script.
pub(super) struct Faults {
    plan: FaultPlan,
    generators: BTreeMap<FaultKind, SeededRandom>,
    ordered: Vec<(FaultKind, Option<PathBuf>)>,
    /// How often each kind came up.
    pub(super) hits: BTreeMap<FaultKind, u64>,
    pub(super) damage: Vec<Damage>,
}

impl Faults {
    pub(super) fn new(plan: FaultPlan, random: &SeededRandom) -> Faults {
        let generators = FaultKind::ALL.iter().map(|&kind| (kind, random.child(kind.name()))).collect();
        Faults { plan, generators, ordered: Vec::new(), hits: BTreeMap::new(), damage: Vec::new() }
    }

    pub(super) fn set_plan(&mut self, plan: FaultPlan) {
        self.plan = plan;
    }

    pub(super) fn order(&mut self, kind: FaultKind, path: Option<PathBuf>) {
        self.ordered.push((kind, path));
    }

    /// Decides whether an operation on `path` has this fault. `damaged_files`: ends of the names of those that drawn
    /// damage to the medium may meet; none for all.
    pub(super) fn hit(&mut self, kind: FaultKind, path: &Path, damaged_files: &[String]) -> bool {
        let is_hit = self.decide(kind, path, damaged_files);
        if is_hit {
            *self.hits.entry(kind).or_default() += 1;
        }
        is_hit
    }

    fn decide(&mut self, kind: FaultKind, path: &Path, damaged_files: &[String]) -> bool {
        let ordered =
            |(k, p): &(FaultKind, Option<PathBuf>)| *k == kind && p.as_deref().is_none_or(|p| p == path);
        if let Some(position) = self.ordered.iter().position(ordered) {
            self.ordered.remove(position);
            return true;
        }
        let name = path.as_os_str().as_encoded_bytes();
        let is_spared = kind.is_media_damage()
            && !damaged_files.is_empty()
            && !damaged_files.iter().any(|end| name.ends_with(end.as_bytes()));
        if is_spared {
            return false;
        }
        let rate = self.plan.rate(kind);
        rate > 0.0 && self.random(kind).chance(rate)
    }

    /// The generator for the details of a kind.
    pub(super) fn random(&self, kind: FaultKind) -> &SeededRandom {
        &self.generators[&kind]
    }

    pub(super) fn note(&mut self, kind: FaultKind, path: &Path, bytes: Range<u64>) {
        self.damage.push(Damage { kind, path: path.to_path_buf(), bytes });
    }
}
