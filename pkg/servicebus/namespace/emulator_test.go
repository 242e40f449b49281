package namespace_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/servicebus/namespace"
)

// The configuration as Microsoft documents it, field by field.
func TestEmulatorConfig_IsWhatTheEmulatorReads(t *testing.T) {
	t.Parallel()
	top, err := namespace.New(namespace.Config{
		TopicPrefix: "bus-p", Lanes: 1, ReplyPrefix: "replies-p", ReplySubscription: "lucius",
		Directives: []namespace.Directive{{Service: "ocr", StepType: "OCR"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	text, err := top.EmulatorConfig()
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"UserConfig": {"Logging": {"Type": "Console"}, "Namespaces": [{"Name": "sbemulatorns", "Queues": [], "Topics": [
		{"Name": "bus-p0",
			"Properties": {"DefaultMessageTimeToLive": "PT3600S", "RequiresDuplicateDetection": true, "DuplicateDetectionHistoryTimeWindow": "PT300S"},
			"Subscriptions": [{"Name": "ocr",
				"Properties": {"DefaultMessageTimeToLive": "PT3600S", "LockDuration": "PT1M", "MaxDeliveryCount": 10, "RequiresSession": false},
				"Rules": [{"Name": "service", "Properties": {"FilterType": "Correlation", "CorrelationFilter": {"Properties": {"service": "ocr"}}}}]}]},
		{"Name": "replies-p0",
			"Properties": {"DefaultMessageTimeToLive": "PT3600S", "RequiresDuplicateDetection": false},
			"Subscriptions": [{"Name": "lucius",
				"Properties": {"DefaultMessageTimeToLive": "PT3600S", "LockDuration": "PT1M", "MaxDeliveryCount": 10, "RequiresSession": false}}]}
	]}]}}`
	if diff := cmp.Diff(decode(t, want), decode(t, string(text))); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// decode decodes JSON.
func decode(t *testing.T, text string) (v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v
}

func TestEmulatorConfig_NamesTheLimitThatIsExceeded(t *testing.T) {
	t.Parallel()
	services := func(n int) (directives []namespace.Directive) {
		for i := range n {
			directives = append(directives, namespace.Directive{Service: fmt.Sprint("s", i)})
		}
		return directives
	}
	for want, cfg := range map[string]namespace.Config{
		"":                               {Lanes: 25, ReplyPrefix: "r", ReplySubscription: "s", Directives: services(50), MessageBytes: 256 << 10},
		"room for 50 topics":             {Lanes: 26, ReplyPrefix: "r", ReplySubscription: "s", Directives: services(1)},
		"room for 50 subscriptions":      {Lanes: 1, Directives: services(51)},
		"no protocol names a service":    {Lanes: 1},
		"lower LUCIUS_MAX_PAYLOAD_BYTES": {Lanes: 1, Directives: services(1), MessageBytes: 300_000},
	} {
		cfg.TopicPrefix = "p"
		top, err := namespace.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = top.EmulatorConfig(); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
