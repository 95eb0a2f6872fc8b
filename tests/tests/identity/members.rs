//! Member lists that do not add up.

use ichor_api::names;
use ichor_tests::sim::Member;

use crate::BED;
use crate::common::{Stage, on_stage};

/// Every node lists `members` from now on.
fn all_list(stage: &Stage, members: &[Member]) {
    for name in stage.voters.iter().chain([&stage.spare]) {
        stage.box_of(name).lie_member_list(Some(members.to_vec()));
    }
}

fn invented(name: &str, started: bool) -> Member {
    Member {
        id: "00000000000000aa".to_owned(),
        number: 0xaa,
        name: name.to_owned(),
        peer_urls: vec!["http://192.0.2.7:2380".to_owned()],
        client_urls: Vec::new(),
        learner: false,
        started,
    }
}

#[test]
fn where_two_members_have_one_name_neither_is_removed() {
    on_stage(&BED, async |stage| {
        stage.join_spare().await;
        let name = stage.voters[0].as_str();
        let mut members = stage.bed.etcd_members().await.unwrap();
        members.push(invented(name, true));
        all_list(stage, &members);
        stage.delete(name).await;
        let message = stage.stands(name, "UnknownMember").await;
        assert!(message.contains("00000000000000aa"), "{message}");
        assert!(message.contains(name), "{message}");
        stage.until_unlocked().await;
        assert_eq!(stage.changing_calls(), [""; 0]);
        // Gone from the list, nothing is in the way any more.
        for name in stage.voters.iter().chain([&stage.spare]) {
            stage.box_of(name).lie_member_list(None);
        }
        stage.gone(name).await;
    });
}

#[test]
fn while_an_unstarted_member_is_listed_no_voter_goes() {
    on_stage(&BED, async |stage| {
        let mut members = stage.bed.etcd_members().await.unwrap();
        members.push(invented("", false));
        all_list(stage, &members);
        let name = stage.voters[0].as_str();
        stage.delete(name).await;
        let message = stage.stands(name, "UnknownMember").await;
        assert!(message.contains("unstarted"), "{message}");
        // Somebody says whose it is: then it is one that has not started, and comes first.
        stage
            .annotate(&stage.spare, names::ETCD_MEMBER_ID, Some("aa"))
            .await;
        let message = stage.stands(name, "LearnerPresent").await;
        assert!(message.contains("unstarted"), "{message}");
        stage.until_unlocked().await;
        assert_eq!(stage.changing_calls(), [""; 0]);
        stage
            .annotate(name, names::CANCEL_REMOVAL, Some("true"))
            .await;
        stage.gone(name).await;
    });
}

#[test]
fn where_nodes_list_different_members_nothing_is_removed() {
    on_stage(&BED, async |stage| {
        stage.join_spare().await;
        let name = stage.voters[0].as_str();
        let mut members = stage.bed.etcd_members().await.unwrap();
        members.retain(|m| m.name != stage.voters[2]);
        stage
            .box_of(&stage.voters[1])
            .lie_member_list(Some(members));
        stage.delete(name).await;
        let message = stage.stands(name, "EtcdUnreachable").await;
        let liar = stage.box_of(&stage.voters[1]).address().to_string();
        assert!(message.contains(&liar), "{message}");
        stage.until_unlocked().await;
        assert_eq!(stage.changing_calls(), [""; 0]);
        stage.box_of(&stage.voters[1]).lie_member_list(None);
        stage.gone(name).await;
    });
}
