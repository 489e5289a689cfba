//! Which bookies get the entries of new ledgers, and which are read first: settings as `bindery_client` takes them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bindery_client::resolver::{
    NetworkResolver, RealDisk, Resolution, ResolveError, ScriptResolver, TableResolver,
};
use bindery_client::{ClientBuilder, Location, SystemRandom};
use pyo3::exceptions::{PyOSError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::options::seconds;

/// Spreads write sets over racks.
#[pyclass(frozen, from_py_object, module = "bindery")]
#[derive(Clone)]
pub(crate) struct RackAware(bindery_client::RackAware<SystemRandom>);

#[pymethods]
impl RackAware {
    #[new]
    #[pyo3(signature = (*, racks_min=2, enforced=false))]
    fn new(racks_min: usize, enforced: bool) -> RackAware {
        RackAware(bindery_client::RackAware::new(SystemRandom).racks_min(racks_min).enforced(enforced))
    }
}

/// Spreads write sets over regions, and inside them over racks.
#[pyclass(frozen, from_py_object, module = "bindery")]
#[derive(Clone)]
pub(crate) struct RegionAware(bindery_client::RegionAware<SystemRandom>);

#[pymethods]
impl RegionAware {
    #[new]
    #[pyo3(signature = (*, regions_min=2, racks_min=2, regions=None, enforced=false))]
    fn new(
        regions_min: usize,
        racks_min: usize,
        regions: Option<Vec<String>>,
        enforced: bool,
    ) -> RegionAware {
        let policy = bindery_client::RegionAware::new(SystemRandom);
        let policy = policy.regions_min(regions_min).racks_min(racks_min).enforced(enforced);
        RegionAware(policy.regions(regions.unwrap_or_default()))
    }
}

/// How free disk space steers the choice of bookies.
#[pyclass(frozen, from_py_object, module = "bindery")]
#[derive(Clone)]
pub(crate) struct DiskWeights(bindery_client::DiskWeights);

#[pymethods]
impl DiskWeights {
    #[new]
    #[pyo3(signature = (*, multiple_max=None, interval=None))]
    fn new(multiple_max: Option<u32>, interval: Option<f64>) -> PyResult<DiskWeights> {
        let mut weights = bindery_client::DiskWeights::new();
        if let Some(multiple) = multiple_max {
            weights = weights.multiple_max(multiple);
        }
        if let Some(interval) = seconds("interval", interval)? {
            if interval.is_zero() {
                return Err(PyValueError::new_err("interval: bookies cannot be asked every 0 s"));
            }
            weights = weights.interval(interval);
        }
        Ok(DiskWeights(weights))
    }
}

/// The policy.
#[derive(FromPyObject)]
pub(crate) enum Policy {
    Rack(RackAware),
    Region(RegionAware),
    Word(String),
}

/// The resolver of bookies' places; clones share it.
#[derive(Clone)]
struct Racks(Arc<dyn NetworkResolver>);

impl NetworkResolver for Racks {
    fn resolve<'a>(&'a self, hosts: &'a [String]) -> Resolution<'a> {
        self.0.resolve(hosts)
    }
}

/// Arguments of `Client`.
pub(crate) struct Arguments<'py> {
    pub policy: Option<Policy>,
    pub rack_map: Option<Bound<'py, PyAny>>,
    pub rack_script: Option<PathBuf>,
    pub location: Option<String>,
    pub disk_weights: Option<DiskWeights>,
    pub quarantine_time: Option<Duration>,
}

/// The settings that they come to.
#[derive(Clone)]
pub(crate) struct Placement {
    policy: Chosen,
    racks: Option<Racks>,
    location: Option<Location>,
    disk_weights: Option<DiskWeights>,
    quarantine_time: Option<Duration>,
}

#[derive(Clone)]
enum Chosen {
    Random,
    Rack(RackAware),
    Region(RegionAware),
}

impl Placement {
    /// Reads the map, if it is a file.
    pub fn of(py: Python<'_>, arguments: Arguments<'_>) -> PyResult<Placement> {
        let Arguments { policy, rack_map, rack_script, location, disk_weights, quarantine_time } = arguments;
        let wrong = |text: &str| Err(PyValueError::new_err(text.to_owned()));
        let racks = match (rack_map, rack_script) {
            (Some(_), Some(_)) => return wrong("give rack_map or rack_script, not both"),
            (Some(map), None) => Some(Racks(Arc::new(table(py, &map)?))),
            (None, Some(script)) => Some(Racks(Arc::new(ScriptResolver::new(script)))),
            (None, None) => None,
        };
        if location.is_some() && racks.is_none() {
            return wrong(
                "location says where this process stands; where the bookies do, rack_map or rack_script has to say",
            );
        }
        let policy = match policy {
            None if racks.is_some() => Chosen::Rack(RackAware::new(2, false)),
            None => Chosen::Random,
            Some(Policy::Word(word)) if word == "random" => Chosen::Random,
            Some(Policy::Word(word)) => {
                return wrong(&format!(
                    "no placement {word:?}: give \"random\", RackAware() or RegionAware()"
                ));
            }
            Some(Policy::Rack(_) | Policy::Region(_)) if racks.is_none() => {
                return wrong(
                    "a placement by racks or regions needs rack_map or rack_script, which say where bookies stand",
                );
            }
            Some(Policy::Rack(policy)) => Chosen::Rack(policy),
            Some(Policy::Region(policy)) => Chosen::Region(policy),
        };
        let location = location.map(|place| Location::new(&place)).transpose();
        let location = location.map_err(|error| PyValueError::new_err(format!("location: {error}")))?;
        Ok(Placement { policy, racks, location, disk_weights, quarantine_time })
    }

    /// For the client.
    pub fn apply(&self, mut builder: ClientBuilder) -> ClientBuilder {
        builder = match self.policy.clone() {
            Chosen::Random => builder,
            Chosen::Rack(policy) => builder.placement(policy.0),
            Chosen::Region(policy) => builder.placement(policy.0),
        };
        if let Some(racks) = self.racks.clone() {
            builder = builder.network_resolver(racks);
        }
        if let Some(location) = self.location.clone() {
            builder = builder.location(location);
        }
        if let Some(DiskWeights(weights)) = self.disk_weights {
            builder = builder.disk_weights(weights);
        }
        if let Some(time) = self.quarantine_time {
            builder = builder.bookie_quarantine_time(time);
        }
        builder
    }
}

/// Of a dict of hosts and their places, or the path of a file with them.
fn table(py: Python<'_>, map: &Bound<'_, PyAny>) -> PyResult<TableResolver> {
    if let Ok(map) = map.cast::<PyDict>() {
        let mut lines = String::new();
        for (host, place) in map {
            let (host, place): (String, String) = (host.extract()?, place.extract()?);
            let is_sound = !host.is_empty() && !host.starts_with('#') && !host.contains(char::is_whitespace);
            if !is_sound {
                return Err(PyValueError::new_err(format!("rack_map: {host:?} is no host")));
            }
            let place = Location::new(&place)
                .map_err(|error| PyValueError::new_err(format!("rack_map: {host}: {error}")))?;
            lines.push_str(&format!("{host} {place}\n"));
        }
        return TableResolver::parse(&lines).map_err(|error| PyValueError::new_err(error.to_string()));
    }
    let path: PathBuf = map.extract().map_err(|_| {
        PyTypeError::new_err("rack_map: a dict of hosts and places, or the path of a file with them")
    })?;
    py.detach(|| TableResolver::open(Arc::new(RealDisk::new()), &path)).map_err(|error| match error {
        ResolveError::CannotRead { .. } => PyOSError::new_err(error.to_string()),
        error => PyValueError::new_err(error.to_string()),
    })
}
