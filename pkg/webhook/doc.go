// Package webhook reports the end of a job to its callback_urls as Standard Webhooks 1.0
// describes: signed, retried over days, and never sent to a forbidden address.
//
//	                           Enter              Send
//	                        ┌──────────────────┐ ┌────────────────┐
//	background.Webhooks ──▶ │ Gate             │▶│ Sender         │
//	   ▲                    │ bound and circuit│ │ sign, transport│──▶ receiver
//	   │                    │ of tenant, host  │ │ Guard at dial  │
//	   │                    └──────────────────┘ └────────────────┘
//	   │                           │ not now            │
//	   └───────────────────────────┴──── Result ◀───────┘
//
// # Guarantees
//
// A webhook is sent until it is delivered, or until the schedule of its
// background.WebhookPolicy is exhausted. It may arrive more than once. All attempts carry the same webhook-id and the
// same body; each has its own timestamp and signature. A receiver that remembers ids
// handles each event once.
//
// The outcome of an attempt is a value, a [Result]:
//
//	2xx                          delivered     DELIVERED
//	410                          gone          GONE, no further attempt
//	any other response, or none  failed        PENDING, EXHAUSTED after the last
//	429, 503 with Retry-After    retry_after   the same, but not due before Retry-After
//	URL or address forbidden     refused       REFUSED
//	the process stops            interrupted   PENDING, due at once, not counted
//	host busy or failing         deferred      PENDING, due at its turn, not counted
//
// The policy, which is pure, decides the next state. The caller stores it; this package
// stores nothing. A replay makes a webhook pending again and resets its attempts.
//
// # Where webhooks go
//
// The client that submits a job chooses the URL, and so could make the server call hosts
// inside its network (server-side request forgery). Checking the URL alone does not help: a
// name may resolve to any address, and to a different one a moment later. So the [Guard]
// checks twice. On submission, [Guard.CheckURL] rejects obviously wrong URLs early. On each
// connection, after the name was resolved, the guard checks the address that is about to be
// dialed; this is the check that protects. Only ordinary internet addresses pass, unless
// the operator has allowed other networks.
//
// The sender follows no redirects, keeps no cookies and ignores proxies in the environment.
// It reads at most a few kilobytes of a response and never shows them: the reasons in a
// Result are fixed texts of this package.
//
// # Isolation of receivers
//
// A receiver that hangs must not occupy all workers, or hold up another tenant's webhooks
// to the same host. The [Gate] bounds the concurrent attempts of each tenant to each host,
// and opens a circuit when a host stops answering a tenant. Deliveries to that host are
// then deferred: they spend no attempt, and say why they wait. A response about one URL,
// such as 404 or 500, does not count against its host. Deferred deliveries get turns at the
// pace of the host, so that a backlog is not tried and deferred over and over. A tenant may
// have, over all hosts, as many concurrent attempts as remain free for others.
//
// # Secrets
//
// A receiver that can verify can also sign, so tenants should not share a secret:
// [TenantSecrets] derives one for each tenant from the operator's secret. If two secrets
// are configured, both sign, and receivers can switch at any time.
//
// Source: Standard Webhooks 1.0.
package webhook
