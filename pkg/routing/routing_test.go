package routing_test

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/routing"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

func newRouter(tb testing.TB, config routing.Config) *routing.Router {
	tb.Helper()
	router, err := routing.New(config)
	if err != nil {
		tb.Fatal(err)
	}
	return router
}

// request holds the arguments of a decision.
type request struct {
	tenant, doc         string
	requested, protocol statemachine.Mode
}

func (r request) decide(router *routing.Router) (statemachine.Routing, error) {
	return router.Decide(r.tenant, r.doc, r.requested, r.protocol)
}

func decide(tb testing.TB, router *routing.Router, r request) statemachine.Routing {
	tb.Helper()
	decision, err := r.decide(router)
	if err != nil {
		tb.Fatalf("Decide(%+v): %v", r, err)
	}
	return decision
}

// The lanes are part of the wire contract: other implementations depend on
// them.
func TestLanesOfTheContract(t *testing.T) {
	t.Parallel()
	router := newRouter(t, routing.Config{})
	for _, test := range []struct {
		name    string
		request request
		want    statemachine.Routing
	}{
		{
			"tenant_a",
			request{tenant: "tenant_a"},
			statemachine.Routing{ResolvedMode: "DEFAULT", Lane: 15, RoutingKeyUsed: "tenant_a", Topic: "global-bus-p15", DecisionSource: "default"},
		},
		{
			"tenant_a with doc_1 in BURST",
			request{tenant: "tenant_a", doc: "doc_1", requested: statemachine.ModeBurst},
			statemachine.Routing{ResolvedMode: "BURST", Lane: 5, RoutingKeyUsed: "tenant_adoc_1", Topic: "global-bus-p5", DecisionSource: "request",
				DecisionReason: "The request asks for BURST: the tenant id and the doc id choose the lane."},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(test.want, decide(t, router, test.request)); diff != "" {
				t.Errorf("decision (-want +got):\n%s", diff)
			}
		})
	}
}

func TestModePrecedence(t *testing.T) {
	t.Parallel()
	router := newRouter(t, routing.Config{})
	const none, standard, burst = statemachine.Mode(""), statemachine.ModeDefault, statemachine.ModeBurst
	for _, test := range []struct {
		request, protocol, want statemachine.Mode
		source                  string
		reason                  string
	}{
		{none, none, standard, routing.SourceDefault, ""},
		{none, standard, standard, routing.SourceProtocol, "The request names no mode and the protocol asks for DEFAULT: the tenant id alone chooses the lane."},
		{none, burst, burst, routing.SourceProtocol, "The request names no mode and the protocol asks for BURST: the tenant id and the doc id choose the lane."},
		{standard, burst, standard, routing.SourceRequest, "The request asks for DEFAULT: the tenant id alone chooses the lane."},
		{burst, standard, burst, routing.SourceRequest, "The request asks for BURST: the tenant id and the doc id choose the lane."},
		{burst, none, burst, routing.SourceRequest, "The request asks for BURST: the tenant id and the doc id choose the lane."},
	} {
		t.Run("request "+string(test.request)+", protocol "+string(test.protocol), func(t *testing.T) {
			t.Parallel()
			got := decide(t, router, request{tenant: "t", doc: "d", requested: test.request, protocol: test.protocol})
			if got.ResolvedMode != test.want || got.DecisionSource != test.source || got.DecisionReason != test.reason {
				t.Errorf("got %s by %s: %s\nwant %s by %s: %s", got.ResolvedMode, got.DecisionSource, got.DecisionReason, test.want, test.source, test.reason)
			}
		})
	}
}

func TestSpellingsOfOneIDShareARoutingKey(t *testing.T) {
	t.Parallel()
	router := newRouter(t, routing.Config{})
	for _, test := range []struct{ name, tenant, doc, want string }{
		{"as it is", "tenant_a", "doc_1", "tenant_adoc_1"},
		{"white space around", " \ttenant_a\n", "\u00a0doc_1\u2003", "tenant_adoc_1"},
		{"white space inside stays", "tenant a", "doc 1", "tenant adoc 1"},
		{"upper case", "Tenant_A", "DOC_1", "tenant_adoc_1"},
		{"upper case beyond ASCII", "ÄRGER", "ΔΟΣ", "ärgerδοσ"},
		{"combining marks are composed", "cafe\u0301", "E\u0301", "caféé"},
		{"compatibility characters are not replaced", "ﬁn", "①", "ﬁn①"},
		{"each id is normalised by itself", "e", "\u0301x", "e\u0301x"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := decide(t, router, request{tenant: test.tenant, doc: test.doc, requested: statemachine.ModeBurst})
			if got.RoutingKeyUsed != test.want {
				t.Errorf("routing key %q, want %q", got.RoutingKeyUsed, test.want)
			}
			got = decide(t, router, request{tenant: test.tenant, doc: test.doc})
			if !strings.HasPrefix(test.want, got.RoutingKeyUsed) {
				t.Errorf("routing key %q in DEFAULT, want the tenant's part of %q", got.RoutingKeyUsed, test.want)
			}
		})
	}
}

func TestDecideRefuses(t *testing.T) {
	t.Parallel()
	router := newRouter(t, routing.Config{})
	for _, test := range []struct {
		name    string
		request request
		want    error
	}{
		{"no tenant", request{}, routing.ErrTenantIDRequired},
		{"a blank tenant", request{tenant: " \u00a0"}, routing.ErrTenantIDRequired},
		{"BURST of the request without a document", request{tenant: "t", requested: "BURST"}, routing.ErrDocIDRequired},
		{"BURST of the protocol without a document", request{tenant: "t", protocol: "BURST"}, routing.ErrDocIDRequired},
		{"BURST with a blank document", request{tenant: "t", doc: "\t", requested: "BURST"}, routing.ErrDocIDRequired},
		{"another mode", request{tenant: "t", requested: "burst"}, routing.ErrUnknownMode},
		{"another mode of the protocol", request{tenant: "t", protocol: "FAST"}, routing.ErrUnknownMode},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if decision, err := test.request.decide(router); !errors.Is(err, test.want) {
				t.Errorf("Decide = %+v, %v, want %v", decision, err, test.want)
			}
		})
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	router := newRouter(t, routing.Config{Lanes: 4, TopicPrefix: "jobs-"})
	if got := decide(t, router, request{tenant: "tenant_a"}); got.Lane != 3 || got.Topic != "jobs-3" {
		t.Errorf("lane %d on %s, want 3 on jobs-3", got.Lane, got.Topic)
	}
	if routing.DefaultLanes != 16 { // TestKeysSpreadOverTheLanes sees that all of them are used.
		t.Errorf("%d lanes by default, want 16", routing.DefaultLanes)
	}
	for _, lanes := range []int{-1, routing.MaxLanes + 1} {
		if _, err := routing.New(routing.Config{Lanes: lanes}); err == nil || !strings.Contains(err.Error(), "Lanes") {
			t.Errorf("New with %d lanes: %v, want an error that names Lanes", lanes, err)
		}
	}
}

func TestValidModes(t *testing.T) {
	t.Parallel()
	for mode, want := range map[statemachine.Mode]bool{"DEFAULT": true, "BURST": true, "": false, "burst": false, "FAST": false} {
		if mode.Valid() != want {
			t.Errorf("%q is valid: %t", mode, !want)
		}
	}
}

// Every lane is used, and by similar numbers of keys.
func TestKeysSpreadOverTheLanes(t *testing.T) {
	t.Parallel()
	router := newRouter(t, routing.Config{})
	const keys = 16000
	var count [routing.DefaultLanes]int
	for i := range keys {
		doc := strings.Repeat("x", i%7) + string(rune('a'+i%26)) + strings.Repeat("0", i/26%9) + string(rune('0'+i%10)) + string(rune(0x4e00+i))
		count[decide(t, router, request{tenant: "t", doc: doc, requested: "BURST"}).Lane]++
	}
	for lane, n := range count {
		if n < keys/16/2 || n > keys/16*2 {
			t.Errorf("lane %d has %d of %d keys", lane, n, keys)
		}
	}
}

func FuzzDecide(f *testing.F) {
	f.Add("tenant_a", "doc_1", true)
	f.Add(" Tenant_A ", "", false)
	f.Add("cafe\u0301", "\xff\u0130", true)
	router := newRouter(f, routing.Config{})
	f.Fuzz(func(t *testing.T, tenant, doc string, burst bool) {
		request := request{tenant: tenant, doc: doc}
		if burst {
			request.requested = statemachine.ModeBurst
		}
		decision, err := request.decide(router)
		if err != nil {
			if strings.TrimSpace(tenant) != "" && strings.TrimSpace(doc) != "" {
				t.Fatalf("Decide(%q, %q): %v", tenant, doc, err)
			}
			return
		}
		if decision.Lane < 0 || decision.Lane >= routing.DefaultLanes ||
			decision.Topic != routing.DefaultTopicPrefix+strconv.Itoa(decision.Lane) {
			t.Fatalf("Decide(%q, %q) = %+v, off the lanes", tenant, doc, decision)
		}
		if !utf8.ValidString(tenant) {
			return // NFC is undefined for such a text, and no such command is accepted.
		}
		request.tenant = "\t" + request.tenant + " "
		again, err := request.decide(router)
		if diff := cmp.Diff(decision, again); err != nil || diff != "" {
			t.Fatalf("white space around %q changes the decision: %v\n%s", tenant, err, diff)
		}
	})
}
