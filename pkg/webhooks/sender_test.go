package webhooks_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/webhooks"
)

func cutPort(url string) (host, port string, found bool) {
	return strings.Cut(strings.TrimPrefix(url, "https://"), ":")
}

func TestSend_WhatTheReceiverGets(t *testing.T) {
	t.Parallel()
	var header http.Header
	var body []byte
	r := answering(t, func(w http.ResponseWriter, r *http.Request) {
		header, body = r.Header, read(t, r.Body)
		http.SetCookie(w, &http.Cookie{Name: "session", Value: "1"})
		w.WriteHeader(http.StatusOK)
	})
	s := sender(t, r, func(cfg *webhooks.Config) { cfg.UserAgent = "test/1" })
	message := to(r.URL + "/hook?a=b")
	for range 2 {
		if diff := cmp.Diff(webhooks.Result{Outcome: webhooks.Delivered, Status: 200}, s.Send(t.Context(), message)); diff != "" {
			t.Fatalf("Result (-want +got):\n%s", diff)
		}
		if string(body) != string(message.Body) {
			t.Errorf("body %s, want %s", body, message.Body)
		}
		key := secret(t, testSecret)
		if err := webhooks.Verify(header, body, time.Now(), webhooks.DefaultTolerance, key); err != nil {
			t.Errorf("Verify: %v", err)
		}
		for _, name := range []string{"Webhook-Timestamp", "Webhook-Signature", "Content-Length"} {
			header.Del(name)
		}
		want := http.Header{
			"Content-Type": {"application/json"}, "User-Agent": {"test/1"}, "Webhook-Id": {"job-1.0"},
		}
		if diff := cmp.Diff(want, header); diff != "" {
			t.Errorf("other headers (-want +got):\n%s", diff)
		}
	}
}

// TestSend_Answers says what each answer means.
func TestSend_Answers(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	answered := func(outcome webhooks.Outcome, status int, reason string) webhooks.Result {
		return webhooks.Result{Outcome: outcome, Status: status, Reason: reason}
	}
	hostFault := func(result webhooks.Result) webhooks.Result {
		result.HostFault = true
		return result
	}
	later := func(status int, after time.Duration, reason string) webhooks.Result {
		return webhooks.Result{Outcome: webhooks.RetryAfter, Status: status, After: after, Reason: reason, HostFault: true}
	}
	const moved = "; redirects are not followed"
	tests := []struct {
		name       string
		status     int
		retryAfter string
		want       webhooks.Result
	}{
		{"200", 200, "", answered(webhooks.Delivered, 200, "")},
		{"202", 202, "", answered(webhooks.Delivered, 202, "")},
		{"204", 204, "5", answered(webhooks.Delivered, 204, "")},
		{"299", 299, "", answered(webhooks.Delivered, 299, "")},
		{"300", 300, "", answered(webhooks.Failed, 300, "the receiver answered 300"+moved)},
		{"301 without a location", 301, "", answered(webhooks.Failed, 301, "the receiver answered 301"+moved)},
		{"304", 304, "", answered(webhooks.Failed, 304, "the receiver answered 304"+moved)},
		{"400", 400, "", answered(webhooks.Failed, 400, "the receiver answered 400")},
		{"404", 404, "", answered(webhooks.Failed, 404, "the receiver answered 404")},
		{"410", 410, "5", answered(webhooks.Gone, 410, "the receiver answered 410")},
		{"429", 429, "", hostFault(answered(webhooks.Failed, 429, "the receiver answered 429"))},
		{"429 with seconds", 429, "120", later(429, 2*time.Minute, "the receiver answered 429")},
		{"500", 500, "", answered(webhooks.Failed, 500, "the receiver answered 500")},
		{"500 with seconds", 500, "120", answered(webhooks.Failed, 500, "the receiver answered 500")},
		{"502", 502, "", hostFault(answered(webhooks.Failed, 502, "the receiver answered 502"))},
		{"503", 503, "", hostFault(answered(webhooks.Failed, 503, "the receiver answered 503"))},
		{"503 with a date that has passed", 503, "Fri, 31 Dec 1999 23:59:59 GMT", later(503, 0, "the receiver answered 503")},
		{"503 with a far date", 503, "Fri, 31 Dec 2999 23:59:59 GMT", later(503, day, "the receiver answered 503")},
		{"503 with too many seconds", 503, strings.Repeat("9", 40), later(503, day, "the receiver answered 503")},
		{"503 with nonsense", 503, "soon", hostFault(answered(webhooks.Failed, 503, "the receiver answered 503"))},
		{"504", 504, "", hostFault(answered(webhooks.Failed, 504, "the receiver answered 504"))},
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

// TestSend_ReceiversThatDoNotAnswer: none of the reasons says more than the tenant
// could find out from outside.
func TestSend_ReceiversThatDoNotAnswer(t *testing.T) {
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
		{"nobody listens", unreachable.URL, nil, nil, "the receiver could not be connected to"},
		{"cut off", cut.URL, cut, nil, "the connection broke before there was an answer"},
		{"endless header", wordy.URL, wordy, nil, "the connection broke before there was an answer"},
		{"unknown authority", well.URL, nil, nil, "the receiver's certificate is not valid"},
		{"certificate of another name", well.at("other.test"), well, [][]string{{"127.0.0.1"}}, "the receiver's certificate is not valid"},
		{"no TLS", plain, nil, nil, "the receiver speaks no acceptable TLS"},
		{"no such name", "https://gone.example.com", nil, [][]string{{}}, "the receiver's host name does not exist"},
		{"no answer about the name", "https://x.example.com", nil, nil, "the receiver's host name could not be looked up"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			dns := &names{answers: test.answers}
			s := sender(t, test.trusted, func(cfg *webhooks.Config) { cfg.Resolver = dns.resolver(t) })
			want := webhooks.Result{Outcome: webhooks.Failed, Reason: test.reason, HostFault: true}
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
	tests := []struct {
		name string
		r    *receiver
		want webhooks.Result
	}{
		{"no answer", slow, webhooks.Result{Outcome: webhooks.Failed, Reason: "the receiver did not answer in time", HostFault: true}},
		{"an answer whose body does not end", dripping, webhooks.Result{Outcome: webhooks.Delivered, Status: 200}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := sender(t, test.r, func(cfg *webhooks.Config) { cfg.Timeout = 500 * time.Millisecond })
			if diff := cmp.Diff(test.want, s.Send(t.Context(), to(test.r.URL))); diff != "" {
				t.Errorf("Result (-want +got):\n%s", diff)
			}
		})
	}
}

// TestSend_AnAnswerWithoutEnd is cut off: Send returns, and the receiver notices.
func TestSend_AnAnswerWithoutEnd(t *testing.T) {
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
	want := webhooks.Result{Outcome: webhooks.Delivered, Status: 200}
	if diff := cmp.Diff(want, sender(t, r, nil).Send(t.Context(), to(r.URL))); diff != "" {
		t.Errorf("Result (-want +got):\n%s", diff)
	}
	<-noticed
}

// TestSend_AConnectionThatWasClosed is not held against the receiver.
func TestSend_AConnectionThatWasClosed(t *testing.T) {
	t.Parallel()
	r := answering(t, ok)
	s := sender(t, r, nil)
	for range 3 {
		if got := s.Send(t.Context(), to(r.URL)); got.Outcome != webhooks.Delivered {
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
	want := webhooks.Result{Outcome: webhooks.Interrupted, Reason: "interrupted before there was an answer"}
	if diff := cmp.Diff(want, sender(t, r, nil).Send(ctx, to(r.URL))); diff != "" {
		t.Errorf("Result (-want +got):\n%s", diff)
	}
}

func TestSend_NothingLeavesUnsigned(t *testing.T) {
	t.Parallel()
	r := answering(t, ok)
	s := sender(t, r, func(cfg *webhooks.Config) { cfg.Secrets = func(string) []webhooks.Secret { return nil } })
	want := webhooks.Result{Outcome: webhooks.Failed, Reason: "there is no secret to sign it with"}
	if diff := cmp.Diff(want, s.Send(t.Context(), to(r.URL))); diff != "" || r.hits.Load() != 0 {
		t.Errorf("hit %d times, Result (-want +got):\n%s", r.hits.Load(), diff)
	}
}

func TestSend_AURLThatIsNotAllowed(t *testing.T) {
	t.Parallel()
	want := webhooks.Result{Outcome: webhooks.Refused, Reason: "callback URL must be an absolute https URL"}
	if diff := cmp.Diff(want, sender(t, nil, nil).Send(t.Context(), to("http://example.com/"))); diff != "" {
		t.Errorf("Result (-want +got):\n%s", diff)
	}
}

func TestNewSender_NamesTheBadField(t *testing.T) {
	t.Parallel()
	tests := map[string]func(*webhooks.Config){
		"Guard":           func(c *webhooks.Config) { c.Guard = nil },
		"Secrets":         func(c *webhooks.Config) { c.Secrets = nil },
		"Timeout":         func(c *webhooks.Config) { c.Timeout = -1 },
		"MaxRetryAfter":   func(c *webhooks.Config) { c.MaxRetryAfter = -1 },
		"MaxConnsPerHost": func(c *webhooks.Config) { c.MaxConnsPerHost = -1 },
		"MaxIdleConns":    func(c *webhooks.Config) { c.MaxIdleConns = -1 },
	}
	for field, spoil := range tests {
		t.Run(field, func(t *testing.T) {
			t.Parallel()
			cfg := webhooks.Config{Guard: onlyUs(t), Secrets: webhooks.TenantSecrets()}
			spoil(&cfg)
			if _, err := webhooks.NewSender(cfg); err == nil || !strings.Contains(err.Error(), field) {
				t.Errorf("NewSender: %v, want an error about %s", err, field)
			}
		})
	}
}
