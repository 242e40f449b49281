package webhook_test

import (
	"context"
	"io"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/lucius-project/lucius/pkg/webhook"
)

func cutPort(url string) (host, port string, found bool) {
	return strings.Cut(strings.TrimPrefix(url, "https://"), ":")
}

// The library of Standard Webhooks verifies the request with each of two secrets.
func TestSend_TheRequest(t *testing.T) {
	t.Parallel()
	var header http.Header
	var body []byte
	r := answering(t, func(w http.ResponseWriter, r *http.Request) {
		header, body = r.Header, read(t, r.Body)
		http.SetCookie(w, &http.Cookie{Name: "session", Value: "1"})
		w.WriteHeader(http.StatusOK)
	})
	keys := []webhook.Secret{secret(t, testSecret), otherSecret(t)}
	s := sender(t, r, func(cfg *webhook.Config) { cfg.Secrets = func(string) []webhook.Secret { return keys } })
	message := to(r.URL + "/hook?a=b")
	for range 2 {
		if diff := cmp.Diff(webhook.Result{Outcome: webhook.Delivered, Status: 200}, s.Send(t.Context(), message)); diff != "" {
			t.Fatalf("Result (-want +got):\n%s", diff)
		}
		if string(body) != string(message.Body) {
			t.Errorf("body %s, want %s", body, message.Body)
		}
		for _, key := range keys {
			verifier, err := standardwebhooks.NewWebhook(key.Reveal())
			if err != nil {
				t.Fatal(err)
			}
			if err := verifier.Verify(body, header); err != nil {
				t.Errorf("%v: %v", err, header)
			}
			if err := verifier.Verify(append(body, ' '), header); err == nil {
				t.Error("another body has the same signature")
			}
		}
		for _, name := range []string{"Webhook-Timestamp", "Webhook-Signature", "Content-Length"} {
			header.Del(name)
		}
		want := http.Header{
			"Content-Type": {"application/json"}, "User-Agent": {"Lucius-Webhooks/1.0"}, "Webhook-Id": {"job-1.0"},
		}
		if diff := cmp.Diff(want, header); diff != "" {
			t.Errorf("other headers (-want +got):\n%s", diff)
		}
	}
}

func TestSend_MapsResponsesToResults(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	answered := func(outcome webhook.Outcome, status int, reason string) webhook.Result {
		return webhook.Result{Outcome: outcome, Status: status, Reason: reason}
	}
	hostFault := func(result webhook.Result) webhook.Result {
		result.HostFault = true
		return result
	}
	later := func(status int, after time.Duration, reason string) webhook.Result {
		return webhook.Result{Outcome: webhook.RetryAfter, Status: status, After: after, Reason: reason, HostFault: true}
	}
	const moved = "; redirects are not followed"
	tests := []struct {
		name       string
		status     int
		retryAfter string
		want       webhook.Result
	}{
		{"200", 200, "", answered(webhook.Delivered, 200, "")},
		{"202", 202, "", answered(webhook.Delivered, 202, "")},
		{"204", 204, "5", answered(webhook.Delivered, 204, "")},
		{"299", 299, "", answered(webhook.Delivered, 299, "")},
		{"300", 300, "", answered(webhook.Failed, 300, "the receiver answered 300"+moved)},
		{"301 without a location", 301, "", answered(webhook.Failed, 301, "the receiver answered 301"+moved)},
		{"304", 304, "", answered(webhook.Failed, 304, "the receiver answered 304"+moved)},
		{"400", 400, "", answered(webhook.Failed, 400, "the receiver answered 400")},
		{"404", 404, "", answered(webhook.Failed, 404, "the receiver answered 404")},
		{"410", 410, "5", answered(webhook.Gone, 410, "the receiver answered 410")},
		{"429", 429, "", hostFault(answered(webhook.Failed, 429, "the receiver answered 429"))},
		{"429 with seconds", 429, "120", later(429, 2*time.Minute, "the receiver answered 429")},
		{"500", 500, "", answered(webhook.Failed, 500, "the receiver answered 500")},
		{"500 with seconds", 500, "120", answered(webhook.Failed, 500, "the receiver answered 500")},
		{"502", 502, "", hostFault(answered(webhook.Failed, 502, "the receiver answered 502"))},
		{"503", 503, "", hostFault(answered(webhook.Failed, 503, "the receiver answered 503"))},
		{"503 with a date that has passed", 503, "Fri, 31 Dec 1999 23:59:59 GMT", later(503, 0, "the receiver answered 503")},
		{"503 with a far date", 503, "Fri, 31 Dec 2999 23:59:59 GMT", later(503, day, "the receiver answered 503")},
		{"503 with too many seconds", 503, strings.Repeat("9", 40), later(503, day, "the receiver answered 503")},
		{"503 with nonsense", 503, "soon", hostFault(answered(webhook.Failed, 503, "the receiver answered 503"))},
		{"504", 504, "", hostFault(answered(webhook.Failed, 504, "the receiver answered 504"))},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := answering(t, func(w http.ResponseWriter, _ *http.Request) {
				if test.retryAfter != "" {
					w.Header().Set("Retry-After", test.retryAfter)
				}
				w.WriteHeader(test.status)
			})
			if diff := cmp.Diff(test.want, sender(t, r, nil).Send(t.Context(), to(r.URL))); diff != "" {
				t.Errorf("Result (-want +got):\n%s", diff)
			}
		})
	}
}

// A receiver hangs with as many attempts as the server makes. Another one on the same host
// still gets its webhook.
func TestSend_HangingAttemptsDoNotHoldUpOthers(t *testing.T) {
	t.Parallel()
	const attempts = 64
	var arrived sync.WaitGroup
	arrived.Add(attempts)
	over := make(chan struct{})
	r := answering(t, func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/hangs" {
			arrived.Done()
			<-over
		}
		ok(w, req)
	})
	s := sender(t, r, nil)
	var hanging sync.WaitGroup
	for range attempts {
		hanging.Go(func() { s.Send(t.Context(), to(r.URL+"/hangs")) })
	}
	arrived.Wait()
	if got := s.Send(t.Context(), to(r.URL+"/well")); got.Outcome != webhook.Delivered {
		t.Errorf("Result = %+v, want it delivered", got)
	}
	close(over)
	hanging.Wait()
}

// The reasons reveal nothing that the tenant could not find out from outside.
func TestSend_ReportsMissingResponses(t *testing.T) {
	t.Parallel()
	unreachable := answering(t, ok)
	unreachable.Close()
	cut := answering(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	wordy := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Long", strings.Repeat("x", 1<<20))
		w.WriteHeader(http.StatusOK)
	})
	well := answering(t, ok)
	plain := listenPlain(t)
	tests := []struct {
		name, url string
		trusted   *receiver
		answers   [][]string
		reason    string
	}{
		{"no server listens", unreachable.URL, nil, nil, "the connection to the receiver failed"},
		{"cut off", cut.URL, cut, nil, "the connection broke before the receiver answered"},
		{"endless header", wordy.URL, wordy, nil, "the connection broke before the receiver answered"},
		{"unknown authority", well.URL, nil, nil, "the receiver's certificate is not valid"},
		{"certificate of another name", well.at("other.test"), well, [][]string{{"127.0.0.1"}}, "the receiver's certificate is not valid"},
		{"no TLS", plain, nil, nil, "the TLS handshake with the receiver failed"},
		{"no such name", "https://gone.example.com", nil, [][]string{{}}, "the receiver's host name does not exist"},
		{"no answer about the name", "https://x.example.com", nil, nil, "the receiver's host name could not be looked up"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			dns := &names{answers: test.answers}
			s := sender(t, test.trusted, func(cfg *webhook.Config) { cfg.Resolver = dns.resolver(t) })
			want := webhook.Result{Outcome: webhook.Failed, Reason: test.reason, HostFault: true}
			if diff := cmp.Diff(want, s.Send(t.Context(), to(test.url))); diff != "" {
				t.Errorf("Result (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSend_SlowReceivers(t *testing.T) {
	t.Parallel()
	over := make(chan struct{})
	slow := answering(t, func(http.ResponseWriter, *http.Request) { <-over })
	dripping := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-over
	})
	t.Cleanup(func() { close(over) })
	noAnswer := webhook.Result{Outcome: webhook.Failed, Reason: "the receiver did not answer in time", HostFault: true}
	tests := []struct {
		name    string
		r       *receiver
		timeout time.Duration
		want    webhook.Result
	}{
		{"no response", slow, 500 * time.Millisecond, noAnswer},
		// Send does not wait for the body until the timeout.
		{"a response whose body does not end", dripping, time.Hour, webhook.Result{Outcome: webhook.Delivered, Status: 200}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := sender(t, test.r, func(cfg *webhook.Config) { cfg.Timeout = test.timeout })
			if diff := cmp.Diff(test.want, s.Send(t.Context(), to(test.r.URL))); diff != "" {
				t.Errorf("Result (-want +got):\n%s", diff)
			}
		})
	}
}

// Send returns although the response does not end, and closes the connection.
func TestSend_BoundsTheResponse(t *testing.T) {
	t.Parallel()
	noticed := make(chan struct{})
	r := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		defer close(noticed)
		for range 1 << 10 {
			if _, err := io.WriteString(w, strings.Repeat("x", 1<<16)); err != nil {
				return
			}
		}
		t.Error("64 MiB were read")
	})
	want := webhook.Result{Outcome: webhook.Delivered, Status: 200}
	if diff := cmp.Diff(want, sender(t, r, nil).Send(t.Context(), to(r.URL))); diff != "" {
		t.Errorf("Result (-want +got):\n%s", diff)
	}
	<-noticed
}

// If the receiver has closed an idle connection, the sender opens a new one.
func TestSend_ReplacesAClosedConnection(t *testing.T) {
	t.Parallel()
	r := answering(t, ok)
	s := sender(t, r, nil)
	for range 3 {
		if got := s.Send(t.Context(), to(r.URL)); got.Outcome != webhook.Delivered {
			t.Fatalf("Result = %+v, want it delivered", got)
		}
		r.CloseClientConnections()
	}
}

func TestSend_Interrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	r := answering(t, func(http.ResponseWriter, *http.Request) {
		cancel()
		<-over
	})
	t.Cleanup(func() { close(over) })
	want := webhook.Result{Outcome: webhook.Interrupted, Reason: "interrupted before the receiver answered"}
	if diff := cmp.Diff(want, sender(t, r, nil).Send(ctx, to(r.URL))); diff != "" {
		t.Errorf("Result (-want +got):\n%s", diff)
	}
}

func TestSend_SendsNothingUnsigned(t *testing.T) {
	t.Parallel()
	r := answering(t, ok)
	s := sender(t, r, func(cfg *webhook.Config) { cfg.Secrets = func(string) []webhook.Secret { return nil } })
	want := webhook.Result{Outcome: webhook.Failed, Reason: "the tenant has no secret for signing"}
	if diff := cmp.Diff(want, s.Send(t.Context(), to(r.URL))); diff != "" || r.hits.Load() != 0 {
		t.Errorf("hit %d times, Result (-want +got):\n%s", r.hits.Load(), diff)
	}
}

func TestSend_RefusesAForbiddenURL(t *testing.T) {
	t.Parallel()
	want := webhook.Result{Outcome: webhook.Refused, Reason: "callback URL must be an absolute https URL"}
	if diff := cmp.Diff(want, sender(t, nil, nil).Send(t.Context(), to("http://example.com/"))); diff != "" {
		t.Errorf("Result (-want +got):\n%s", diff)
	}
}

func TestParseRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)
	const none = time.Duration(-1)
	tests := []struct {
		name, value string
		want        time.Duration
	}{
		{"seconds", "120", 2 * time.Minute},
		{"zero", "0", 0},
		{"leading zeros", "0005", 5 * time.Second},
		{"spaces around", " 7\t", 7 * time.Second},
		{"more than a duration holds", "9223372037", math.MaxInt64},
		{"more than an integer holds", "99999999999999999999", math.MaxInt64},
		{"date", "Sun, 01 Mar 2026 12:00:30 GMT", 30 * time.Second},
		{"date of RFC 850", "Sunday, 01-Mar-26 12:01:00 GMT", time.Minute},
		{"date of asctime", "Sun Mar  1 13:00:00 2026", time.Hour},
		{"date that has passed", "Sun, 01 Mar 2026 11:59:59 GMT", 0},
		{"empty", "", none},
		{"negative", "-1", none},
		{"signed", "+1", none},
		{"fraction", "1.5", none},
		{"hexadecimal", "0x10", none},
		{"unit", "5s", none},
		{"two numbers", "5, 6", none},
		{"date of RFC 3339", "2026-03-01T12:00:30Z", none},
		{"other digits", "５", none},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, ok := webhook.ParseRetryAfter(test.value, now)
			if !ok {
				got = none
			}
			if got != test.want {
				t.Errorf("parseRetryAfter(%q) = %s, want %s", test.value, got, test.want)
			}
		})
	}
}

var forbidden = webhook.Result{
	Outcome: webhook.Refused, Reason: "callback URL leads to an address that is not allowed",
}

// TestSend_RefusesANameThatIsRebound tests DNS rebinding: the name resolves first to an allowed
// address, and later to a private one.
func TestSend_RefusesANameThatIsRebound(t *testing.T) {
	t.Parallel()
	outside := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close") // the next attempt looks the name up again
		w.WriteHeader(http.StatusOK)
	})
	_, port, _ := cutPort(outside.URL)
	inside := listen(t, "127.0.0.2:"+port, ok)
	dns := &names{answers: [][]string{{"127.0.0.1"}, {"127.0.0.2"}}}
	s := sender(t, outside, func(cfg *webhook.Config) { cfg.Resolver = dns.resolver(t) })

	message := to(outside.at("example.com"))
	if diff := cmp.Diff(webhook.Result{Outcome: webhook.Delivered, Status: 200}, s.Send(t.Context(), message)); diff != "" {
		t.Fatalf("first attempt (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(forbidden, s.Send(t.Context(), message)); diff != "" {
		t.Errorf("after the name moved (-want +got):\n%s", diff)
	}
	if n := inside.hits.Load(); n != 0 {
		t.Errorf("the inside was reached %d times", n)
	}
}

// The address decides, whatever the name.
func TestSend_RefusesNamesOfForbiddenAddresses(t *testing.T) {
	t.Parallel()
	tests := map[string][]string{
		"loopback":             {"127.0.0.2"},
		"private":              {"10.1.2.3"},
		"metadata":             {"169.254.169.254"},
		"unspecified":          {"0.0.0.0"},
		"IPv6 loopback":        {"::1"},
		"mapped":               {"::ffff:10.1.2.3"},
		"unique local":         {"fd00:ec2::254"},
		"translated":           {"64:ff9b::a01:203"},
		"all of several":       {"10.1.2.3", "192.168.0.1", "::1"},
		"both families of one": {"192.168.0.1", "fe80::1"},
	}
	for name, addresses := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dns := &names{answers: [][]string{addresses}}
			s := sender(t, nil, func(cfg *webhook.Config) { cfg.Resolver = dns.resolver(t) })
			if diff := cmp.Diff(forbidden, s.Send(t.Context(), to("https://hooks.example.com/x"))); diff != "" {
				t.Errorf("Result (-want +got):\n%s", diff)
			}
		})
	}
}

// A host with forbidden addresses, too, is not refused for good while its allowed one is down.
func TestSend_RetriesAHostOfWhichOneAddressIsAllowed(t *testing.T) {
	t.Parallel()
	down := answering(t, ok)
	down.Close()
	dns := &names{answers: [][]string{{"127.0.0.2", "127.0.0.1"}}}
	s := sender(t, nil, func(cfg *webhook.Config) { cfg.Resolver = dns.resolver(t) })
	want := webhook.Result{Outcome: webhook.Failed, Reason: "the connection to the receiver failed", HostFault: true}
	if diff := cmp.Diff(want, s.Send(t.Context(), to(down.at("hooks.example.com")))); diff != "" {
		t.Errorf("Result (-want +got):\n%s", diff)
	}
}

func TestSend_FollowsNoRedirects(t *testing.T) {
	t.Parallel()
	for _, status := range []int{301, 302, 303, 307, 308} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			t.Parallel()
			inside := answering(t, ok) // The guard would allow this receiver.
			outside := answering(t, func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, inside.URL, status)
			})
			got := sender(t, outside, nil).Send(t.Context(), to(outside.URL))
			if got.Outcome != webhook.Failed || got.Status != status {
				t.Errorf("Result = %+v, want a failure with %d", got, status)
			}
			if n := inside.hits.Load(); n != 0 {
				t.Errorf("the inside was reached %d times", n)
			}
		})
	}
}
