package topology_test

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/servicebus/topology"
)

// rest fakes the parts of a namespace's REST interface that this package uses. It
// stores entities as they were put.
type rest struct {
	mu       sync.Mutex
	sku      string
	entities map[string]string // the description of each, by path
	status   int               // of every answer, unless it is 0
}

var description = regexp.MustCompile(`(?s)<(Topic|Subscription)Description.*</(Topic|Subscription)Description>`)

// Do implements the transport.
func (r *rest) Do(req *http.Request) (*http.Response, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	path := strings.TrimPrefix(req.URL.Path, "/")
	switch {
	case r.status != 0:
		return answer(req, r.status, ""), nil
	case path == "$namespaceinfo":
		return answer(req, 200, entry("ns", "<NamespaceInfo><CreatedTime>2026-01-01T00:00:00Z</CreatedTime><MessagingSKU>"+r.sku+
			"</MessagingSKU><ModifiedTime>2026-01-01T00:00:00Z</ModifiedTime><Name>ns</Name></NamespaceInfo>")), nil
	case req.Method == http.MethodPut:
		return r.put(req, path)
	case strings.HasSuffix(path, "/Subscriptions") && req.URL.Query().Has("$skip"):
		return answer(req, 200, feed("")), nil // One page has them all.
	case strings.HasSuffix(path, "/Subscriptions"):
		return answer(req, 200, r.list(path)), nil
	}
	text, ok := r.entities[path]
	if !ok {
		return answer(req, 200, feed("")), nil
	}
	return answer(req, 200, entry(path, text)), nil
}

func (r *rest) put(req *http.Request, path string) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	if _, ok := r.entities[path]; ok {
		return answer(req, 409, "<Error><Code>409</Code><Detail>exists</Detail></Error>"), nil
	}
	r.entities[path] = description.FindString(string(body))
	return answer(req, 201, entry(path, r.entities[path])), nil
}

// list returns the feed of a topic's subscriptions.
func (r *rest) list(path string) string {
	var b strings.Builder
	for name, text := range r.entities {
		if rest, ok := strings.CutPrefix(name, path+"/"); ok {
			b.WriteString(entry(rest, text))
		}
	}
	return feed(b.String())
}

// feed is a list as ATOM has it.
func feed(entries string) string {
	return `<feed xmlns="http://www.w3.org/2005/Atom"><title type="text">Publicly Listed Services</title>` + entries + "</feed>"
}

// entry is an entity as ATOM has it.
func entry(path, text string) string {
	name := path[strings.LastIndexByte(path, '/')+1:]
	return fmt.Sprintf(`<entry xmlns="http://www.w3.org/2005/Atom"><title type="text">%s</title><content type="application/xml">%s</content></entry>`,
		name, text)
}

func answer(req *http.Request, status int, body string) *http.Response {
	return &http.Response{
		StatusCode: status, Status: http.StatusText(status), Header: http.Header{"Content-Type": {"application/atom+xml"}},
		Body: io.NopCloser(strings.NewReader(body)), Request: req,
	}
}

const connection = "Endpoint=sb://ns.servicebus.example/;SharedAccessKeyName=n;SharedAccessKey=aGVsbG8="

func TestNamespace_OverItsRESTInterface(t *testing.T) {
	t.Parallel()
	service := &rest{sku: "Standard", entities: map[string]string{}}
	bus, err := topology.Open(topology.NamespaceOptions{Connection: connection, Transport: service})
	if err != nil {
		t.Fatal(err)
	}
	top := wanted(t)
	if findings, err := top.Check(t.Context(), bus); err != nil || len(findings) != 4 {
		t.Errorf("an empty namespace: %v, %v", findings, err)
	}
	created, err := top.Provision(t.Context(), bus)
	if err != nil || len(created) != 10 {
		t.Fatalf("created %v, %v", created, err)
	}
	topic := service.entities["bus-p0"]
	if !strings.Contains(topic, "<RequiresDuplicateDetection>true<") || !strings.Contains(topic, "<DuplicateDetectionHistoryTimeWindow>PT600S<") {
		t.Errorf("the topic is %s", topic)
	}
	rule := service.entities["bus-p1/Subscriptions/ocr"]
	if !strings.Contains(rule, "CorrelationFilter") || !strings.Contains(rule, ">ocr<") || !strings.Contains(rule, ">service<") {
		t.Errorf("the subscription is %s", rule)
	}
	if findings, err := top.Check(t.Context(), bus); err != nil || len(findings) != 0 {
		t.Errorf("after provisioning: %v, %v", findings, err)
	}
	if err := bus.CreateTopic(t.Context(), &top.Topics[0]); err != nil {
		t.Errorf("a topic that is there: %v", err)
	}
	big := wanted(t)
	big.MessageBytes = 300_000
	if findings, err := big.Check(t.Context(), bus); err != nil || len(findings) != 2 {
		t.Errorf("messages that do not fit: %v, %v", findings, err)
	}
	service.sku = "Premium"
	if findings, err := big.Check(t.Context(), bus); err != nil || len(findings) != 0 {
		t.Errorf("messages that fit: %v, %v", findings, err)
	}
}

func TestNamespace_ReportsRefusals(t *testing.T) {
	t.Parallel()
	service := &rest{status: 401}
	bus, err := topology.Open(topology.NamespaceOptions{Connection: connection, Transport: service})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bus.Limits(t.Context()); !errors.Is(err, topology.ErrForbidden) {
		t.Errorf("without the right: %v", err)
	}
	service.status = 404
	if err := bus.CreateTopic(t.Context(), &topology.Topic{Name: "t"}); err == nil || !strings.Contains(err.Error(), "404 Not Found") {
		t.Errorf("another refusal: %v", err)
	}
	if _, err := topology.Open(topology.NamespaceOptions{Connection: "SharedAccessKey=secret"}); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("a bad connection string: %v", err)
	}
}

func TestOpen_AnEmulatorCannotBeManaged(t *testing.T) {
	t.Parallel()
	_, err := topology.Open(topology.NamespaceOptions{Connection: connection + ";usedevelopmentemulator=True", Transport: &rest{}})
	if err == nil || !strings.Contains(err.Error(), "cannot be managed") || strings.Contains(err.Error(), "aGVsbG8=") {
		t.Errorf("an emulator: %v", err)
	}
	if _, err := topology.Open(topology.NamespaceOptions{Connection: connection + ";UseDevelopmentEmulator=false", Transport: &rest{}}); err != nil {
		t.Errorf("none: %v", err)
	}
}

func TestPeriods(t *testing.T) {
	t.Parallel()
	service := &rest{sku: "Standard", entities: map[string]string{}}
	bus, err := topology.Open(topology.NamespaceOptions{Connection: connection, Transport: service})
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]time.Duration{
		"": 0, "PT10M": 10 * time.Minute, "P1DT2H3M4.5S": 26*time.Hour + 3*time.Minute + 4*time.Second, "PT0S": 0,
		"P10675199DT2H48M5.4775807S": 1<<63 - 1, "ten": -1,
	} {
		var escaped strings.Builder
		if err := xml.EscapeText(&escaped, []byte(text)); err != nil {
			t.Fatal(err)
		}
		service.entities["t"] = `<TopicDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">` +
			`<DuplicateDetectionHistoryTimeWindow>` + escaped.String() + `</DuplicateDetectionHistoryTimeWindow></TopicDescription>`
		state, err := bus.Topic(t.Context(), "t")
		if want < 0 {
			if err == nil {
				t.Errorf("%q was parsed as a period", text)
			}
			continue
		}
		if err != nil || state.Window != want {
			t.Errorf("%q: %+v, %v, want %s", text, state, err, want)
		}
	}
}
