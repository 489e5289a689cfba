//! Flags that say which bookies get the entries of a ledger.

use crate::exit::Failure;
use bindery_client::resolver::{ScriptResolver, TableResolver};
use bindery_client::{ClientBuilder, DiskWeights, Location, RackAware, RegionAware};
use bindery_io::{RealDisk, SystemRandom};
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use std::sync::Arc;

/// Set for each flag by itself: a heading for all that follow would cover the flags of a command that flattens these.
const HEADING: &str = "Placement";

/// Which bookies get the entries.
#[derive(Debug, Clone, Default, Args)]
pub struct PlacementArgs {
    /// How bookies are chosen: at random, spread over racks, or over regions and their racks
    /// [default: rack with --rack-script or --rack-map, else random]
    #[arg(help_heading = HEADING, long, value_name = "random|rack|region")]
    pub placement: Option<PlacementKind>,
    /// Script that is given hosts of bookies and prints the place of each: /rack or /region/rack
    #[arg(help_heading = HEADING, long, value_name = "FILE", env = "BINDERY_RACK_SCRIPT", conflicts_with = "rack_map")]
    pub rack_script: Option<PathBuf>,
    /// File with lines of a host and its place
    #[arg(help_heading = HEADING, long, value_name = "FILE", env = "BINDERY_RACK_MAP")]
    pub rack_map: Option<PathBuf>,
    /// Racks that each entry is to be on, as far as there are so many [default: 2]
    #[arg(help_heading = HEADING, long, value_name = "N")]
    pub min_racks: Option<usize>,
    /// Regions that each entry is to be on, with --placement region [default: 2]
    #[arg(help_heading = HEADING, long, value_name = "N")]
    pub min_regions: Option<usize>,
    /// Fail rather than have entries on fewer racks or regions; bookies of unknown racks are not used
    #[arg(help_heading = HEADING, long)]
    pub enforce_racks: bool,
    /// Choose bookies with more free disk space more often
    #[arg(help_heading = HEADING, long)]
    pub weigh_disks: bool,
    /// Where this process stands, as /rack or /region/rack: with --rack-script or --rack-map, of replicas that are about as
    /// fast those of its rack are read first, then those of its region
    #[arg(help_heading = HEADING, long, value_name = "PLACE", env = "BINDERY_LOCATION", value_parser = location)]
    pub location: Option<Location>,
}

fn location(text: &str) -> Result<Location, String> {
    Location::new(text).map_err(|error| error.to_string())
}

/// `--placement`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PlacementKind {
    Random,
    Rack,
    Region,
}

impl PlacementArgs {
    /// A function that applies them to a client.
    pub fn tune(&self) -> Result<impl FnOnce(ClientBuilder) -> ClientBuilder + use<>, Failure> {
        let args = self.clone();
        if args.location.is_some() && args.rack_script.is_none() && args.rack_map.is_none() {
            return Err(Failure::usage(
                "--location (BINDERY_LOCATION) says where this process stands; where the bookies do, --rack-script or \
                 --rack-map has to say",
            ));
        }
        let kind = args.placement.unwrap_or(match args.rack_script.is_some() || args.rack_map.is_some() {
            true => PlacementKind::Rack,
            false => PlacementKind::Random,
        });
        let has_rules = args.min_racks.is_some() || args.min_regions.is_some() || args.enforce_racks;
        if kind == PlacementKind::Random && has_rules {
            return Err(Failure::usage(
                "--min-racks, --min-regions and --enforce-racks are for --placement rack or region, with --rack-script \
                 or --rack-map",
            ));
        }
        if kind == PlacementKind::Rack && args.min_regions.is_some() {
            return Err(Failure::usage("--min-regions is for --placement region"));
        }
        let map = match &args.rack_map {
            Some(path) => Some(TableResolver::open(Arc::new(RealDisk::new()), path).map_err(Failure::usage)?),
            None => None,
        };
        Ok(move |mut builder: ClientBuilder| {
            builder = match kind {
                PlacementKind::Random => builder,
                PlacementKind::Rack => {
                    let mut placement = RackAware::new(SystemRandom).enforced(args.enforce_racks);
                    if let Some(racks) = args.min_racks {
                        placement = placement.racks_min(racks);
                    }
                    builder.placement(placement)
                }
                PlacementKind::Region => {
                    let mut placement = RegionAware::new(SystemRandom).enforced(args.enforce_racks);
                    if let Some(racks) = args.min_racks {
                        placement = placement.racks_min(racks);
                    }
                    if let Some(regions) = args.min_regions {
                        placement = placement.regions_min(regions);
                    }
                    builder.placement(placement)
                }
            };
            if let Some(location) = args.location {
                builder = builder.location(location);
            }
            if let Some(script) = args.rack_script {
                builder = builder.network_resolver(ScriptResolver::new(script));
            }
            if let Some(map) = map {
                builder = builder.network_resolver(map);
            }
            if args.weigh_disks { builder.disk_weights(DiskWeights::default()) } else { builder }
        })
    }
}
