//! The token of a notebook server, which the broker sees only to exchange it for another.

use crate::server::Server;
use axum::{
    Json, Router,
    http::{HeaderMap, StatusCode},
    routing::{get, post},
};
use baton_transport::{Api, Dial, LinkError, Token};
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
};

#[derive(Clone, Default)]
struct Door {
    given: Arc<AtomicUsize>,
    lifetime: Arc<AtomicU64>,
    /// The authorization of all other requests.
    seen: Arc<Mutex<Vec<String>>>,
    /// Answered instead of a token.
    broken: Arc<Mutex<Option<StatusCode>>>,
    refuses: Arc<Mutex<Option<String>>>,
}

impl Door {
    async fn open(&self) -> (Server, Dial) {
        let (exchange, page) = (self.clone(), self.clone());
        let router = Router::new()
            .route(
                "/v1/notebook-token",
                post(async move |headers: HeaderMap| exchange.exchange(&headers)),
            )
            .route(
                "/page",
                get(async move |headers: HeaderMap| page.page(&headers)),
            );
        let server = Server::tcp(router).await;
        let dial = Dial {
            token: Some(Token::of_notebook_server("of the server")),
            ..server.dial.clone()
        };
        (server, dial)
    }

    fn exchange(&self, headers: &HeaderMap) -> Result<Json<serde_json::Value>, StatusCode> {
        assert_eq!(headers["authorization"], "Bearer of the server");
        if let Some(status) = *self.broken.lock().unwrap() {
            return Err(status);
        }
        let number = self.given.fetch_add(1, SeqCst);
        let lifetime = self.lifetime.load(SeqCst);
        Ok(Json(serde_json::json!({
            "token": format!("token {number}"),
            "expires_in_seconds": lifetime,
        })))
    }

    fn page(&self, headers: &HeaderMap) -> StatusCode {
        let shown = headers["authorization"].to_str().unwrap().to_owned();
        let refused = self.refuses.lock().unwrap().as_ref() == Some(&shown);
        self.seen.lock().unwrap().push(shown);
        if refused {
            StatusCode::UNAUTHORIZED
        } else {
            StatusCode::OK
        }
    }
}

#[tokio::test]
async fn it_is_exchanged_once_and_again_before_the_other_expires() {
    let door = Door::default();
    door.lifetime.store(3600, SeqCst);
    let (_server, dial) = door.open().await;
    // Everything that acts for the notebook shares one exchanged token.
    for api in [Api::new(&dial).unwrap(), Api::new(&dial).unwrap()] {
        api.get("/page").await.unwrap();
        api.get("/page").await.unwrap();
    }
    assert_eq!(*door.seen.lock().unwrap(), ["Bearer token 0"; 4]);
    assert_eq!(door.given.load(SeqCst), 1);

    // A token that the broker no longer knows is not sent again.
    *door.refuses.lock().unwrap() = Some("Bearer token 0".to_owned());
    door.lifetime.store(0, SeqCst);
    let api = Api::new(&dial).unwrap();
    let refused = api.get("/page").await.unwrap_err();
    assert!(matches!(refused, LinkError::Forgotten { .. }) && refused.is_transient());
    for number in 1..4 {
        api.get("/page").await.unwrap();
        let seen = door.seen.lock().unwrap().last().cloned();
        assert_eq!(seen, Some(format!("Bearer token {number}")));
    }
    *door.broken.lock().unwrap() = Some(StatusCode::SERVICE_UNAVAILABLE);
    assert!(api.get("/page").await.unwrap_err().is_transient());
    *door.broken.lock().unwrap() = Some(StatusCode::UNAUTHORIZED);
    let refused = api.get("/page").await;
    assert!(matches!(refused, Err(LinkError::Unauthorized { .. })));
}
