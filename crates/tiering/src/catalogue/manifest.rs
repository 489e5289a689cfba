//! Manifests: which runs there are, and how far in the log they reach. And the marker that says that here is a catalogue.

use bindery_types::codec::{Put, Take};

use super::record::{envelop, enveloped};
use super::run::RunShape;
use super::{CatalogueDamage, Position, Totals};
use crate::ClusterId;

const MANIFEST_MAGIC: &[u8; 8] = b"BNDRTMAN";
const MARKER_MAGIC: &[u8; 8] = b"BNDRTFMT";
/// Longest manifest: 20,000 runs, where merging leaves a few dozen.
pub(super) const MANIFEST_BYTES_MAX: usize = 1 << 20;

/// The name of a run. One that was made for a manifest below [`Manifest::run_floor`] and is not named by then never will be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct RunName {
    /// The manifest that was the newest when the run was begun.
    pub manifest: u64,
    /// Drawn at random.
    pub nonce: u64,
}

/// A run that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RunRef {
    pub name: RunName,
    pub shape: RunShape,
}

/// The state up to a number of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Manifest {
    pub cluster: ClusterId,
    /// Its own number, from 1; 0 is the manifest of the empty catalogue, which is written nowhere.
    pub number: u64,
    /// The runs have every change up to there.
    pub covered: Position,
    /// Records up to this number may have been deleted, once this manifest exists.
    pub log_floor: u64,
    /// Runs that were begun before this manifest, and that none names, may be deleted once this one exists.
    pub run_floor: u64,
    /// At `covered`.
    pub totals: Totals,
    /// The newest first: its rows count.
    pub runs: Vec<RunRef>,
}

impl Manifest {
    pub(super) fn empty(cluster: ClusterId) -> Manifest {
        Manifest {
            cluster,
            number: 0,
            covered: Position::default(),
            log_floor: 0,
            run_floor: 0,
            totals: Totals::default(),
            runs: Vec::new(),
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        let totals = &self.totals;
        Put(&mut body)
            .bytes(self.cluster.as_bytes())
            .u64(self.number)
            .u64(self.covered.number)
            .u64(self.covered.log_ms)
            .u64(self.log_floor)
            .u64(self.run_floor)
            .u64(totals.ledgers)
            .u64(totals.extents)
            .u64(totals.bytes)
            .u64(totals.objects)
            .u64(totals.object_bytes)
            .u64(totals.unreferenced)
            .u64(totals.unreferenced_bytes)
            .u64(totals.reserved)
            .u32(u32::try_from(self.runs.len()).expect("a few dozen runs"));
        for run in &self.runs {
            Put(&mut body).u64(run.name.manifest).u64(run.name.nonce);
            run.shape.encode(&mut body);
        }
        envelop(MANIFEST_MAGIC, &body)
    }

    pub(super) fn decode(bytes: &[u8], cluster: ClusterId, number: u64) -> Result<Manifest, CatalogueDamage> {
        let mut fields = enveloped(bytes, MANIFEST_MAGIC, MANIFEST_BYTES_MAX)?;
        let manifest = (|| {
            let mut manifest = Manifest::empty(ClusterId::from_bytes(fields.array()?));
            manifest.number = fields.u64()?;
            manifest.covered = Position { number: fields.u64()?, log_ms: fields.u64()? };
            manifest.log_floor = fields.u64()?;
            manifest.run_floor = fields.u64()?;
            manifest.totals = Totals {
                ledgers: fields.u64()?,
                extents: fields.u64()?,
                bytes: fields.u64()?,
                objects: fields.u64()?,
                object_bytes: fields.u64()?,
                unreferenced: fields.u64()?,
                unreferenced_bytes: fields.u64()?,
                reserved: fields.u64()?,
            };
            let count = fields.u32()? as usize;
            if fields.0.len() != count * (16 + RunShape::SIZE_BYTES) {
                return None;
            }
            for _ in 0..count {
                let name = RunName { manifest: fields.u64()?, nonce: fields.u64()? };
                manifest.runs.push(RunRef { name, shape: RunShape::decode(&mut fields)? });
            }
            let is_sound =
                manifest.log_floor <= manifest.covered.number && manifest.run_floor <= manifest.number;
            is_sound.then_some(manifest)
        })()
        .ok_or(CatalogueDamage::Malformed)?;
        if manifest.cluster != cluster {
            return Err(CatalogueDamage::OtherCluster { found: manifest.cluster, expected: cluster });
        }
        if manifest.number != number {
            return Err(CatalogueDamage::Misplaced { found: manifest.number, expected: number });
        }
        Ok(manifest)
    }
}

/// What stands at `catalogue/format`: here is a catalogue, of this version and this cluster. Written once.
pub(super) fn encode_marker(cluster: ClusterId, created_ms: u64) -> Vec<u8> {
    let mut body = Vec::new();
    Put(&mut body).bytes(cluster.as_bytes()).u64(created_ms);
    envelop(MARKER_MAGIC, &body)
}

/// Compares version and cluster (T18).
pub(super) fn check_marker(bytes: &[u8], cluster: ClusterId) -> Result<(), CatalogueDamage> {
    let mut fields: Take<'_> = enveloped(bytes, MARKER_MAGIC, MANIFEST_BYTES_MAX)?;
    let found = fields.array().map(ClusterId::from_bytes).ok_or(CatalogueDamage::Malformed)?;
    let is_whole = fields.u64().is_some() && fields.is_empty();
    if !is_whole {
        return Err(CatalogueDamage::Malformed);
    }
    match found == cluster {
        true => Ok(()),
        false => Err(CatalogueDamage::OtherCluster { found, expected: cluster }),
    }
}
