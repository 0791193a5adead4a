//! The time zones in which people read and write times.

use crate::{
    actions::done,
    harness::{Broker, Rules},
};

/// The page of a course for its staff, with this line in the courses file.
async fn course_page(zone: &str) -> (Broker, String) {
    let deadline =
        "[[course.ml.deadline]]\nuntil = \"2030-07-01T12:00\"\nweight = 2\nbefore = \"24h\"";
    let broker = Broker::start_with(Rules {
        courses: Some(format!("{zone}\n[course.ml]\n{deadline}")),
        tcp: true,
        ..Rules::default()
    })
    .await;
    let page = broker.get("/course?name=ml").await;
    (broker, page)
}

#[tokio::test]
async fn times_are_in_the_zone_of_the_courses() {
    let (broker, page) = course_page("time_zone = \"Asia/Kolkata\"").await;
    for text in ["In Asia/Kolkata.", "value=\"2030-07-01T12:00\""] {
        assert!(page.contains(text), "{text} is not in {page}");
    }
    let change = serde_json::json!({"message": "Hello"});
    done(&broker, "sesame", "/v1/courses/ml", change).await;
    let audit = broker.get("/audit").await;
    assert!(
        audit.contains(" IST</time>") && !audit.contains("UTC"),
        "{audit}"
    );

    // Without a zone, a script writes the same moment in the browser's zone.
    let (broker, _) = course_page("").await;
    let change = serde_json::json!({"message": "Hello"});
    done(&broker, "sesame", "/v1/courses/ml", change).await;
    let audit = broker.get("/audit").await;
    assert!(
        audit.contains("<time data-moment=\"") && audit.contains(" UTC</time>"),
        "{audit}"
    );
}
