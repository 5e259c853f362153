//! Tickets that are used, lost, withdrawn, replaced and guessed.

use super::*;

const NOW: Timestamp = Timestamp(1_700_000_000_000);
const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);
const FEDBOOT: NodeId = NodeId::from_bytes([7; 32]);

fn ask(secret: InvitationSecret, joiner: NodeId) -> JoinAsk {
    JoinAsk {
        invitation: secret.name(),
        proof: secret.proof(joiner, FEDBOOT),
    }
}

fn name(text: &str) -> MemberName {
    text.parse().unwrap()
}

#[test]
fn a_ticket_admits_one_node_and_answers_it_again() {
    let folder = tempfile::tempdir().unwrap();
    let organiser = Organiser::create(folder.path()).unwrap();
    let secret = organiser
        .invite(name("ward-b"), Role::Node, WEEK, NOW)
        .unwrap();
    let (bob, eve) = (NodeId::from_bytes([1; 32]), NodeId::from_bytes([2; 32]));
    // Eve has heard Bob's request, and sends it as her own.
    let stolen = organiser.answer(&ask(secret, bob), eve, FEDBOOT, NOW);
    assert_eq!(stolen, Err(JoinRefusal::Unknown));
    let organiser = Organiser::open(folder.path()).unwrap();
    let statements = organiser
        .answer(&ask(secret, bob), bob, FEDBOOT, NOW)
        .unwrap();
    let again = organiser.answer(&ask(secret, bob), bob, FEDBOOT, NOW + WEEK * 2);
    assert_eq!(again, Ok(statements), "the answer was lost on its way");
    let used = organiser.answer(&ask(secret, eve), eve, FEDBOOT, NOW);
    assert_eq!(used, Err(JoinRefusal::Used));
    assert_eq!(organiser.book().unwrap().role(&bob, NOW), Ok(Role::Node));
    let rows = organiser.list(NOW).unwrap();
    assert_eq!((rows.len(), rows[0].standing), (1, "member"));
}

#[test]
fn a_restored_folder_learns_what_it_had_signed_and_uses_no_number_twice() {
    let folder = tempfile::tempdir().unwrap();
    let organiser = Organiser::create(folder.path()).unwrap();
    let (ann, bob) = (NodeId::from_bytes([1; 32]), NodeId::from_bytes([2; 32]));
    organiser.admit(ann, name("ann"), Role::Node, NOW).unwrap();
    let backup = fs::read(organiser.members_file()).unwrap();
    organiser.admit(bob, name("bob"), Role::Node, NOW).unwrap();
    let others = organiser.book().unwrap();
    fs::write(organiser.members_file(), backup).unwrap();
    organiser.exchange(&others).unwrap();
    assert_eq!(organiser.revoke("ann", NOW).unwrap(), Some(ann));
    organiser.exchange(&others).unwrap();
    assert_eq!(others.role(&ann, NOW), Err(Absence::Revoked));
    assert_eq!(others.role(&bob, NOW), Ok(Role::Node));
}

#[test]
fn a_ticket_whose_certificate_was_lost_to_a_full_disk_still_admits_its_node() {
    let folder = tempfile::tempdir().unwrap();
    let organiser = Organiser::create(folder.path()).unwrap();
    let secret = organiser
        .invite(name("bob"), Role::Node, WEEK, NOW)
        .unwrap();
    let bob = NodeId::from_bytes([1; 32]);
    organiser
        .answer(&ask(secret, bob), bob, FEDBOOT, NOW)
        .unwrap();
    // The ticket is noted as used, and the statement is gone.
    fs::remove_file(organiser.members_file()).unwrap();
    let again = organiser.answer(&ask(secret, bob), bob, FEDBOOT, NOW);
    assert_eq!(again.unwrap().len(), 1);
}

#[test]
fn tickets_expire_and_can_be_withdrawn() {
    let folder = tempfile::tempdir().unwrap();
    let organiser = Organiser::create(folder.path()).unwrap();
    let invite = |who: &str| organiser.invite(name(who), Role::Node, WEEK, NOW).unwrap();
    let (old, withdrawn) = (invite("old"), invite("withdrawn"));
    let bob = NodeId::from_bytes([1; 32]);
    let late = organiser.answer(&ask(old, bob), bob, FEDBOOT, NOW + WEEK * 2);
    assert_eq!(late, Err(JoinRefusal::Expired));
    assert_eq!(organiser.revoke("withdrawn", NOW).unwrap(), None);
    let answer = organiser.answer(&ask(withdrawn, bob), bob, FEDBOOT, NOW);
    assert_eq!(answer, Err(JoinRefusal::Unknown));
    assert!(organiser.revoke("withdrawn", NOW).is_err());
}

/// Otherwise the ticket would bring it back, and nothing could withdraw it: nobody is called so any more.
#[test]
fn a_member_is_revoked_with_its_ticket_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let organiser = Organiser::create(folder.path()).unwrap();
    let [bob, again] = [1, 2].map(|byte| NodeId::from_bytes([byte; 32]));
    organiser.admit(bob, name("bob"), Role::Node, NOW).unwrap();
    let (secret, _) = organiser.invite_again(name("bob"), WEEK, NOW).unwrap();
    // Tickets cannot be written: a folder is in the way.
    let obstacle = folder.path().join(format!("{INVITATIONS_FILE}.partial"));
    fs::create_dir(&obstacle).unwrap();
    assert!(organiser.revoke(&bob.to_string(), NOW).is_err());
    fs::remove_dir(&obstacle).unwrap();
    assert_eq!(organiser.revoke(&bob.to_string(), NOW).unwrap(), Some(bob));
    let answer = organiser.answer(&ask(secret, again), again, FEDBOOT, NOW);
    assert_eq!(answer, Err(JoinRefusal::Unknown));
    let book = organiser.book().unwrap();
    assert_eq!(book.role(&bob, NOW), Err(Absence::Revoked));
}

#[test]
fn a_revoked_member_cannot_come_back_with_its_key_and_gives_its_name_back() {
    let folder = tempfile::tempdir().unwrap();
    let organiser = Organiser::create(folder.path()).unwrap();
    let bob = NodeId::from_bytes([1; 32]);
    organiser.admit(bob, name("bob"), Role::Node, NOW).unwrap();
    let taken = organiser.invite(name("bob"), Role::Node, WEEK, NOW);
    assert!(matches!(taken, Err(OrganiserError::NameTaken(_))));
    assert_eq!(organiser.revoke("bob", NOW).unwrap(), Some(bob));
    let secret = organiser
        .invite(name("bob"), Role::Node, WEEK, NOW)
        .unwrap();
    let answer = organiser.answer(&ask(secret, bob), bob, FEDBOOT, NOW);
    assert_eq!(answer, Err(JoinRefusal::Revoked));
    let other = NodeId::from_bytes([2; 32]);
    assert!(
        organiser
            .answer(&ask(secret, other), other, FEDBOOT, NOW)
            .is_ok()
    );
}

#[test]
fn a_member_with_another_key_keeps_its_name_and_role_and_loses_the_old_key() {
    let folder = tempfile::tempdir().unwrap();
    let organiser = Organiser::create(folder.path()).unwrap();
    let (old, new) = (NodeId::from_bytes([1; 32]), NodeId::from_bytes([2; 32]));
    let hub = Role::Aggregator;
    organiser.admit(old, name("hub"), hub, NOW).unwrap();
    let (secret, role) = organiser.invite_again(name("hub"), WEEK, NOW).unwrap();
    assert_eq!(role, hub);
    let book = organiser.book().unwrap();
    assert_eq!(book.role(&old, NOW), Ok(hub), "until the ticket is used");
    let answer = |who| organiser.answer(&ask(secret, who), who, FEDBOOT, NOW);
    answer(new).unwrap();
    let book = organiser.book().unwrap();
    assert_eq!(book.role(&new, NOW), Ok(hub));
    assert_eq!(book.role(&old, NOW), Err(Absence::Revoked));
    assert_eq!(book.certificate(&new).unwrap().name, name("hub"));
    assert_eq!(answer(old), Err(JoinRefusal::Revoked));
    // Neither the old key nor a revoked member can use a ticket for another key.
    let (again, _) = organiser.invite_again(name("hub"), WEEK, NOW).unwrap();
    let used_by = |who| organiser.answer(&ask(again, who), who, FEDBOOT, NOW);
    assert_eq!(used_by(new), Err(JoinRefusal::Revoked));
    assert_eq!(organiser.revoke("hub", NOW).unwrap(), Some(new));
    let third = NodeId::from_bytes([3; 32]);
    assert_eq!(used_by(third), Err(JoinRefusal::Unknown));
    let nobody = organiser.invite_again(name("bob"), WEEK, NOW);
    assert!(matches!(nobody, Err(OrganiserError::Nobody(_))));
}

/// Nobody but root can make files for others, so others see nothing of this.
#[test]
fn what_root_does_in_the_folder_of_a_service_stays_readable_to_the_service() {
    use std::os::unix::fs::{MetadataExt, chown};

    const SERVICE: u32 = 4711;
    let folder = tempfile::tempdir().unwrap();
    let organiser = Organiser::create(folder.path()).unwrap();
    let bob = NodeId::from_bytes([1; 32]);
    organiser.admit(bob, name("bob"), Role::Node, NOW).unwrap();
    for path in [
        folder.path(),
        &folder.path().join(KEY_FILE),
        &organiser.members_file(),
    ] {
        if chown(path, Some(SERVICE), Some(SERVICE)).is_err() {
            return;
        }
    }
    let ann = name("ann");
    organiser.invite(ann, Role::Node, WEEK, NOW).unwrap();
    assert_eq!(organiser.revoke("bob", NOW).unwrap(), Some(bob));
    let files: Vec<_> = fs::read_dir(folder.path()).unwrap().flatten().collect();
    assert_eq!(files.len(), 4, "{files:?}");
    for file in files {
        let metadata = file.metadata().unwrap();
        let owner = (metadata.uid(), metadata.gid());
        assert_eq!(owner, (SERVICE, SERVICE), "{file:?}");
    }
}

#[test]
fn a_damaged_key_is_not_to_be_removed() {
    let folder = tempfile::tempdir().unwrap();
    let organiser = Organiser::create(folder.path()).unwrap();
    let key = folder.path().join(KEY_FILE);
    let half = fs::read(&key).unwrap()[..7].to_vec();
    fs::write(&key, half).unwrap();
    let line = Organiser::open(folder.path()).unwrap_err().to_string();
    for words in [
        "from a backup",
        "Do not remove it",
        "nobody can be invited or revoked",
        "new tickets",
    ] {
        assert!(line.contains(words), "{line}");
    }
    fs::write(organiser.folder.join(INVITATIONS_FILE), b"[").unwrap();
    let line = organiser.list(NOW).unwrap_err().to_string();
    assert!(
        line.contains("backup") && line.contains("are void"),
        "{line}"
    );
}

#[test]
fn a_ticket_that_nobody_has_seen_is_withdrawn_and_no_member_goes() {
    let folder = tempfile::tempdir().unwrap();
    let organiser = Organiser::create(folder.path()).unwrap();
    let bob = NodeId::from_bytes([1; 32]);
    organiser.admit(bob, name("bob"), Role::Node, NOW).unwrap();
    organiser.invite_again(name("bob"), WEEK, NOW).unwrap();
    organiser.withdraw(&name("bob")).unwrap();
    let rows = organiser.list(NOW).unwrap();
    assert_eq!((rows.len(), rows[0].standing), (1, "member"));
    organiser
        .invite(name("eve"), Role::Node, WEEK, NOW)
        .unwrap();
    organiser.withdraw(&name("eve")).unwrap();
    let again = organiser.invite(name("eve"), Role::Node, WEEK, NOW);
    assert!(again.is_ok(), "the name is free");
}
