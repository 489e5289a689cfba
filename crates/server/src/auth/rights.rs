//! Which requests a role allows: the one place where that is decided.
//!
//! | role | requests |
//! |---|---|
//! | writer | adds, recovery adds, WRITE_LAC, FORCE_LEDGER, and reads that fence |
//! | reader | all other reads, if the bookie requires a role for them; else everybody who is served reads |
//! | tier | RECONCILE_LEDGERS, of tierers |
//! | admin | changes over the admin port |

use bindery_wire::v2;
use bindery_wire::v3::Operation;
use std::fmt;
use std::str::FromStr;

/// A group of requests that a user may make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Writes and recovers ledgers.
    Writer,
    /// Reads them.
    Reader,
    /// Tells bookies what is in object storage.
    Tier,
    /// Changes something over the admin port.
    Admin,
}

impl Role {
    /// All of them.
    pub const ALL: [Role; 4] = [Role::Writer, Role::Reader, Role::Tier, Role::Admin];

    /// As it stands in a file of users, or in a certificate.
    pub const fn name(self) -> &'static str {
        match self {
            Role::Writer => "writer",
            Role::Reader => "reader",
            Role::Tier => "tier",
            Role::Admin => "admin",
        }
    }
}

/// Not a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a role: give some of writer, reader, tier and admin, with commas between them")]
pub struct UnknownRole;

impl FromStr for Role {
    type Err = UnknownRole;

    fn from_str(name: &str) -> Result<Role, UnknownRole> {
        Role::ALL.into_iter().find(|role| role.name() == name).ok_or(UnknownRole)
    }
}

/// The roles of a user.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Roles(u8);

impl Roles {
    /// These roles.
    pub fn of(roles: impl IntoIterator<Item = Role>) -> Roles {
        Roles(roles.into_iter().fold(0, |bits, role| bits | 1 << role as u8))
    }

    /// Of everybody whom a Java bookie would serve.
    pub fn of_clients() -> Roles {
        Roles::of([Role::Writer, Role::Reader])
    }

    /// True when this role is one of them.
    pub const fn has(self, role: Role) -> bool {
        self.0 & 1 << role as u8 != 0
    }

    /// These and those.
    pub const fn with(self, others: Roles) -> Roles {
        Roles(self.0 | others.0)
    }
}

impl FromStr for Roles {
    type Err = UnknownRole;

    /// Names with commas between them.
    fn from_str(names: &str) -> Result<Roles, UnknownRole> {
        let roles: Vec<Role> = names.split(',').map(str::parse).collect::<Result<_, _>>()?;
        Ok(Roles::of(roles))
    }
}

impl fmt::Display for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = Role::ALL.into_iter().filter(|role| self.has(*role)).map(Role::name).collect();
        f.write_str(&names.join(","))
    }
}

impl fmt::Debug for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Roles({self})")
    }
}

/// The right that a request needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// None: it is about the connection itself.
    Nothing,
    /// To change ledgers, or who may.
    Write,
    /// To see what is here.
    Read,
    /// To say what is in object storage.
    Tier,
}

impl Need {
    /// Of a request in the binary protocol.
    pub fn of_v2(request: &v2::Request<'_>) -> Need {
        let of_read = |flags: v2::Flags| Need::of_read(flags.contains(v2::Flags::DO_FENCING));
        match request {
            v2::Request::Add(_) => Need::Write,
            v2::Request::Read(read) => of_read(read.flags),
            v2::Request::BatchRead(read) => of_read(read.flags),
            v2::Request::Auth(_) => Need::Nothing,
        }
    }

    /// Of a request in the protobuf protocol.
    pub fn of_v3(operation: &Operation) -> Need {
        match operation {
            Operation::Add(_) | Operation::WriteLac(_) | Operation::ForceLedger(_) => Need::Write,
            Operation::Read(read) => Need::of_read(read.is_fencing()),
            Operation::ReadLac(_) | Operation::GetBookieInfo(_) | Operation::GetListOfEntries(_) => {
                Need::Read
            }
            Operation::ReconcileLedgers(_) => Need::Tier,
            Operation::Auth(_) | Operation::StartTls => Need::Nothing,
        }
    }

    const fn of_read(is_fencing: bool) -> Need {
        if is_fencing { Need::Write } else { Need::Read }
    }

    /// Why a request that needs this is refused, for the audit log.
    pub(crate) const fn refusal(self) -> &'static str {
        match self {
            Need::Nothing => "the user's roles do not allow it",
            Need::Write => "the user's roles do not allow it (writer)",
            Need::Read => "the user's roles do not allow it (reader)",
            Need::Tier => "the user's roles do not allow it (tier)",
        }
    }
}

/// The requests that a connection may make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rights {
    may_write: bool,
    may_read: bool,
    may_tier: bool,
}

impl Rights {
    /// Of every connection where the bookie authenticates nobody.
    pub const ALL: Rights = Rights { may_write: true, may_read: true, may_tier: true };
    /// Of a peer that has not said who it is.
    pub const NONE: Rights = Rights { may_write: false, may_read: false, may_tier: false };

    /// Of a user with these roles. `requires_reader`: reading needs a role, too.
    pub const fn of(roles: Roles, requires_reader: bool) -> Rights {
        Rights {
            may_write: roles.has(Role::Writer),
            may_read: !requires_reader || roles.has(Role::Reader),
            may_tier: roles.has(Role::Tier),
        }
    }

    /// True when a request that needs this may be served.
    pub const fn permit(self, need: Need) -> bool {
        match need {
            Need::Nothing => true,
            Need::Write => self.may_write,
            Need::Read => self.may_read,
            Need::Tier => self.may_tier,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_types::MasterKey;
    use bindery_wire::v3::proto::{self, OperationType, add_request, read_request};

    /// Every request of both protocols, and the right that it needs.
    fn table() -> Vec<(&'static str, Need, Need)> {
        let key = MasterKey::new([1; 20]);
        let body = [0; 40];
        let v2_add = |flags| Need::of_v2(&v2::Request::Add(v2::Add::new(flags, key, &body).unwrap()));
        let v2_read = |flags| {
            let master_key = Some(key);
            Need::of_v2(&v2::Request::Read(v2::Read {
                version: 2,
                flags,
                ledger_id: 1,
                entry_id: 0,
                master_key,
            }))
        };
        let v2_batch = |flags| {
            Need::of_v2(&v2::Request::BatchRead(v2::BatchRead {
                version: 2,
                flags,
                ledger_id: 1,
                start_entry_id: 0,
                request_id: 1,
                max_count: 1,
                max_size_bytes: 1,
                master_key: Some(key),
                stride: 1,
            }))
        };
        let v2_auth = v2::Auth { version: 2, flags: v2::Flags::NONE, message: &[] };
        let v3_read = |flag: Option<read_request::Flag>, previous_lac| {
            let flag = flag.map(|flag| flag as i32);
            Need::of_v3(&Operation::Read(proto::ReadRequest { flag, previous_lac, ..Default::default() }))
        };
        let recovery = Some(add_request::Flag::RecoveryAdd as i32);
        vec![
            ("v2 ADDENTRY", v2_add(v2::Flags::NONE), Need::Write),
            ("v2 ADDENTRY, recovery", v2_add(v2::Flags::RECOVERY_ADD), Need::Write),
            ("v2 READENTRY", v2_read(v2::Flags::NONE), Need::Read),
            ("v2 READENTRY, fencing", v2_read(v2::Flags::DO_FENCING), Need::Write),
            ("v2 BATCH_READ_ENTRY", v2_batch(v2::Flags::HIGH_PRIORITY), Need::Read),
            ("v2 BATCH_READ_ENTRY, fencing", v2_batch(v2::Flags::DO_FENCING), Need::Write),
            ("v2 AUTH", Need::of_v2(&v2::Request::Auth(v2_auth)), Need::Nothing),
            ("v3 ADD_ENTRY", Need::of_v3(&Operation::Add(proto::AddRequest::default())), Need::Write),
            (
                "v3 ADD_ENTRY, recovery",
                Need::of_v3(&Operation::Add(proto::AddRequest { flag: recovery, ..Default::default() })),
                Need::Write,
            ),
            ("v3 READ_ENTRY", v3_read(None, None), Need::Read),
            ("v3 READ_ENTRY, fencing", v3_read(Some(read_request::Flag::FenceLedger), None), Need::Write),
            // A fence wins over a long poll (protocol reference, section 2.4).
            ("v3 READ_ENTRY, both", v3_read(Some(read_request::Flag::FenceLedger), Some(0)), Need::Write),
            (
                "v3 READ_ENTRY, long poll",
                v3_read(Some(read_request::Flag::EntryPiggyback), Some(0)),
                Need::Read,
            ),
            (
                "v3 WRITE_LAC",
                Need::of_v3(&Operation::WriteLac(proto::WriteLacRequest::default())),
                Need::Write,
            ),
            ("v3 READ_LAC", Need::of_v3(&Operation::ReadLac(proto::ReadLacRequest::default())), Need::Read),
            ("v3 FORCE_LEDGER", Need::of_v3(&Operation::ForceLedger(Default::default())), Need::Write),
            ("v3 GET_BOOKIE_INFO", Need::of_v3(&Operation::GetBookieInfo(Default::default())), Need::Read),
            (
                "v3 GET_LIST_OF_ENTRIES_OF_LEDGER",
                Need::of_v3(&Operation::GetListOfEntries(Default::default())),
                Need::Read,
            ),
            (
                "v3 RECONCILE_LEDGERS",
                Need::of_v3(&Operation::ReconcileLedgers(Default::default())),
                Need::Tier,
            ),
            ("v3 AUTH", Need::of_v3(&Operation::Auth(proto::AuthMessage::default())), Need::Nothing),
            ("v3 START_TLS", Need::of_v3(&Operation::StartTls), Need::Nothing),
        ]
    }

    #[test]
    fn each_request_needs_the_right_that_the_table_says() {
        let table = table();
        for (request, need, expected) in &table {
            assert_eq!(need, expected, "{request}");
        }
        // Of the operations of v3, those that are served; the others are refused by the decoder.
        let served = (1..2000).filter_map(|number| OperationType::try_from(number).ok()).filter(|kind| {
            let is_unknown = matches!(
                kind,
                OperationType::RangeReadEntry | OperationType::RangeAddEntry | OperationType::BatchReadEntry
            );
            !is_unknown
        });
        for kind in served {
            let name = format!("v3 {}", kind.as_str_name());
            assert!(table.iter().any(|(row, ..)| *row == name), "{name} has no row");
        }
    }

    #[test]
    fn each_role_permits_its_own_requests_and_no_other() {
        let needs = [Need::Nothing, Need::Write, Need::Read, Need::Tier];
        let permitted = |rights: Rights| needs.map(|need| rights.permit(need));
        let of = |role| Roles::of([role]);
        for (roles, lax, strict) in [
            (Roles::default(), [true, false, true, false], [true, false, false, false]),
            (of(Role::Writer), [true, true, true, false], [true, true, false, false]),
            (of(Role::Reader), [true, false, true, false], [true, false, true, false]),
            (of(Role::Tier), [true, false, true, true], [true, false, false, true]),
            (of(Role::Admin), [true, false, true, false], [true, false, false, false]),
            (Roles::of_clients(), [true, true, true, false], [true, true, true, false]),
            (Roles::of(Role::ALL), [true; 4], [true; 4]),
        ] {
            assert_eq!(permitted(Rights::of(roles, false)), lax, "{roles}");
            assert_eq!(permitted(Rights::of(roles, true)), strict, "{roles}, reading needs a role");
        }
        assert_eq!(permitted(Rights::ALL), [true; 4]);
        assert_eq!(permitted(Rights::NONE), [true, false, false, false]);
    }

    #[test]
    fn roles_are_written_as_they_are_read() {
        for text in ["writer", "reader,tier", "writer,reader,tier,admin"] {
            assert_eq!(text.parse::<Roles>().unwrap().to_string(), text);
        }
        assert_eq!("admin,writer,admin".parse::<Roles>().unwrap().to_string(), "writer,admin");
        for wrong in ["", "writers", "writer,", "writer, reader", "Writer"] {
            assert_eq!(wrong.parse::<Roles>(), Err(UnknownRole), "{wrong}");
        }
    }
}
