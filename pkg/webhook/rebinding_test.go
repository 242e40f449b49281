package webhook_test

import (
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/webhook"
)

var forbidden = webhook.Result{
	Outcome: webhook.Refused, Reason: "callback URL leads to an address that is not allowed",
}

// TestSend_ANameThatMovesInside is DNS rebinding: the name leads to an allowed
// address when it is first looked at, and into the private network later.
func TestSend_ANameThatMovesInside(t *testing.T) {
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

// TestSend_NamesOfForbiddenAddresses: whatever the name is, the address counts.
func TestSend_NamesOfForbiddenAddresses(t *testing.T) {
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

// TestSend_RedirectsIntoTheInside are not followed, whatever their status.
func TestSend_RedirectsIntoTheInside(t *testing.T) {
	t.Parallel()
	for _, status := range []int{301, 302, 303, 307, 308} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			t.Parallel()
			inside := answering(t, ok) // even where it would be allowed
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
