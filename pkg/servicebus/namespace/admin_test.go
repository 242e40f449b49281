package namespace_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/fakeservicebus"
	"github.com/lucius-project/lucius/pkg/servicebus/namespace"
)

// managed is a namespace with its management side.
type managed struct {
	namespace.Admin
	peer    *fakeservicebus.Server
	address string // of its management interface
}

// newManaged starts a namespace.
func newManaged(t *testing.T, cfg fakeservicebus.Config) managed {
	t.Helper()
	peer, err := fakeservicebus.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(peer.Close)
	connection, err := peer.ServeAdmin()
	if err != nil {
		t.Fatal(err)
	}
	bus, err := namespace.Open(namespace.Options{Connection: connection})
	if err != nil {
		t.Fatal(err)
	}
	address, _, _ := strings.Cut(strings.TrimPrefix(connection, "Endpoint=sb://"), ";")
	return managed{Admin: bus, peer: peer, address: address}
}

// put creates an entity of that kind as it is described in XML.
func (m managed) put(t *testing.T, path, kind, description string) {
	t.Helper()
	body := `<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><` + kind +
		` xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">` + description + `</` + kind + `></content></entry>`
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://"+m.address+"/"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := (&http.Client{}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	if err := answer.Body.Close(); err != nil || answer.StatusCode != http.StatusCreated {
		t.Fatalf("put %s: %v, %s", path, err, answer.Status)
	}
}

func TestNamespace_OverItsRESTInterface(t *testing.T) {
	t.Parallel()
	bus := newManaged(t, fakeservicebus.Config{})
	top := wanted(t)
	if findings, err := top.Check(t.Context(), bus); err != nil || len(findings) != 4 {
		t.Errorf("an empty namespace: %v, %v", findings, err)
	}
	created, err := top.Provision(t.Context(), bus)
	if err != nil || len(created) != 10 {
		t.Fatalf("created %v, %v", created, err)
	}
	want := &namespace.TopicState{Active: true, Deduplicates: true, Window: 10 * time.Minute}
	for _, service := range []string{"embed", "ocr"} {
		want.Subscriptions = append(want.Subscriptions, namespace.SubscriptionState{
			Name: service, Active: true, Lock: time.Minute,
			Rules: []namespace.Rule{{Name: "service", Properties: map[string]any{"service": service}, System: map[string]string{}}},
		})
	}
	state, err := bus.Topic(t.Context(), "bus-p1")
	if diff := cmp.Diff(want, state); err != nil || diff != "" {
		t.Errorf("the topic: %v (-want +got)\n%s", err, diff)
	}
	if findings, err := top.Check(t.Context(), bus); err != nil || len(findings) != 0 {
		t.Errorf("after provisioning: %v, %v", findings, err)
	}
	big := wanted(t)
	big.MessageBytes = 300_000
	if findings, err := big.Check(t.Context(), bus); err != nil || len(findings) != 2 {
		t.Errorf("messages that do not fit: %v, %v", findings, err)
	}
}

func TestNamespace_ReadsSettingsAndRules(t *testing.T) {
	t.Parallel()
	bus := newManaged(t, fakeservicebus.Config{Tier: "Premium"})
	if limit, err := bus.Limits(t.Context()); err != nil || limit != 0 {
		t.Errorf("the limit of a Premium namespace is %d, %v", limit, err)
	}
	bus.put(t, "t", "TopicDescription", "<DefaultMessageTimeToLive>PT20S</DefaultMessageTimeToLive><Status>Disabled</Status>"+
		"<AutoDeleteOnIdle>P1D</AutoDeleteOnIdle><MaxMessageSizeInKilobytes>1024</MaxMessageSizeInKilobytes>")
	bus.put(t, "t/Subscriptions/s", "SubscriptionDescription", "<LockDuration>PT5S</LockDuration><RequiresSession>true</RequiresSession>"+
		"<DefaultMessageTimeToLive>P10675199DT2H48M5.4775807S</DefaultMessageTimeToLive><AutoDeleteOnIdle>PT5M</AutoDeleteOnIdle>"+
		"<Status>ReceiveDisabled</Status>")
	for name, filter := range map[string]string{
		"a-sql":     `i:type="SqlFilter"><SqlExpression>service = 'ocr'</SqlExpression>`,
		"b-nothing": `i:type="FalseFilter"><SqlExpression>1=0</SqlExpression>`,
		"c-both": `i:type="CorrelationFilter"><Label>OCR</Label><Properties><KeyValueOfstringanyType><Key>attempt_no</Key>` +
			`<Value i:type="x:int">1</Value></KeyValueOfstringanyType></Properties>`,
		"d-new": `i:type="NeuralFilter">`,
	} {
		bus.put(t, "t/Subscriptions/s/Rules/"+name, "RuleDescription", `<Filter xmlns:i="http://www.w3.org/2001/XMLSchema-instance" `+
			`xmlns:x="http://www.w3.org/2001/XMLSchema" `+filter+"</Filter><Name>"+name+"</Name>")
	}
	state, err := bus.Topic(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	rules := map[string]namespace.Rule{}
	for _, r := range state.Subscriptions[0].Rules {
		rules[r.Name] = r
	}
	state.Subscriptions[0].Rules = nil
	day, forever := 24*time.Hour, time.Duration(1<<63-1)
	if diff := cmp.Diff(&namespace.TopicState{
		MessageBytes: 1 << 20, Lifetime: namespace.Lifetime{Messages: 20 * time.Second, Idle: day},
		Subscriptions: []namespace.SubscriptionState{{
			Name: "s", Sessions: true, Lock: 5 * time.Second, Lifetime: namespace.Lifetime{Messages: forever, Idle: 5 * time.Minute},
		}},
	}, state); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	for name, want := range map[string]string{
		"$Default": "$Default: 1=1", "a-sql": "a-sql: service = 'ocr'", "b-nothing": "b-nothing: 1=0",
		"c-both": `c-both: attempt_no = 1 and Subject = "OCR"`, "d-new": "d-new: (a filter of an unknown type: *admin.UnknownRuleFilter)",
	} {
		if rule := rules[name]; rule.String() != want {
			t.Errorf("rule %q, want %q", rule.String(), want)
		}
	}
}

func TestNamespace_ReportsRefusals(t *testing.T) {
	t.Parallel()
	bus := newManaged(t, fakeservicebus.Config{})
	answer := func(status int) {
		bus.peer.SetHooks(fakeservicebus.Hooks{OnManage: func(string, string) int { return status }})
	}
	answer(http.StatusUnauthorized)
	if _, err := bus.Limits(t.Context()); !errors.Is(err, namespace.ErrForbidden) {
		t.Errorf("without the right: %v", err)
	}
	answer(http.StatusNotFound)
	if err := bus.CreateTopic(t.Context(), &namespace.Topic{Name: "t"}); err == nil || !strings.Contains(err.Error(), "404 Not Found") {
		t.Errorf("another refusal: %v", err)
	}
	if limit, err := bus.Limits(t.Context()); err != nil || limit != 256<<10 {
		t.Errorf("an emulator that knows nothing of its tier: %d, %v", limit, err)
	}
	answer(http.StatusConflict)
	if err := bus.CreateTopic(t.Context(), &namespace.Topic{Name: "t"}); !errors.Is(err, namespace.ErrConflict) {
		t.Errorf("a conflict: %v", err)
	}
	if _, err := namespace.Open(namespace.Options{Connection: "SharedAccessKey=secret"}); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("a bad connection string: %v", err)
	}
}

func TestEmulator_IsToldByItsConnectionString(t *testing.T) {
	t.Parallel()
	for connection, want := range map[string]bool{
		"Endpoint=sb://ns/;SharedAccessKey=a=;UseDevelopmentEmulator=true":   true,
		"Endpoint=sb://ns/;SharedAccessKey=a=;usedevelopmentemulator=True;":  true,
		"Endpoint=sb://ns/;SharedAccessKey=a=;UseDevelopmentEmulator=false;": false,
		"Endpoint=sb://ns/;SharedAccessKey=a=":                               false,
	} {
		if namespace.Emulator(connection) != want {
			t.Errorf("%s: %t", connection, !want)
		}
	}
}

func TestPeriods(t *testing.T) {
	t.Parallel()
	bus := newManaged(t, fakeservicebus.Config{})
	for name, test := range map[string]struct {
		text string
		want time.Duration
	}{
		"none": {"", 0}, "minutes": {"PT10M", 10 * time.Minute}, "nothing": {"PT0S", 0},
		"all-units": {"P1DT2H3M4.5S", 26*time.Hour + 3*time.Minute + 4*time.Second},
		"forever":   {"P10675199DT2H48M5.4775807S", 1<<63 - 1}, "no-period": {"ten", -1},
	} {
		bus.put(t, name, "TopicDescription", "<DuplicateDetectionHistoryTimeWindow>"+test.text+"</DuplicateDetectionHistoryTimeWindow>")
		state, err := bus.Topic(t.Context(), name)
		if test.want < 0 {
			if err == nil {
				t.Errorf("%q was parsed as a period", test.text)
			}
			continue
		}
		if err != nil || state.Window != test.want {
			t.Errorf("%q: %+v, %v, want %s", test.text, state, err, test.want)
		}
	}
}
