package fakeservicebus

import (
	"bytes"
	"cmp"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The XML namespaces of the management interface's documents.
const (
	atomNamespace   = "http://www.w3.org/2005/Atom"
	busNamespace    = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
	schemaNamespace = "http://www.w3.org/2001/XMLSchema"
)

// ServeAdmin serves the management interface over HTTP on a free port of the loopback
// address until Close, and returns a connection string for it. Like AMQP it accepts
// any key, and has no TLS. It can create and list topics, subscriptions and rules.
func (s *Server) ServeAdmin() (connectionString string, err error) {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("listen: %w", err)
	}
	server := &http.Server{Handler: http.HandlerFunc(s.manage), ReadHeaderTimeout: 10 * time.Second}
	s.life.Lock()
	defer s.life.Unlock()
	s.admins = append(s.admins, server)
	s.serving.Go(func() { _ = server.Serve(listener) }) // It returns when it is closed.
	return connectionTo(listener.Addr().String()), nil
}

// description describes a topic, subscription or rule. Its XML is stored and returned as it
// was put; the fake itself uses only some of it.
type description struct {
	XML                                 string       `xml:",innerxml"`
	RequiresDuplicateDetection          bool         `xml:"RequiresDuplicateDetection"`
	DuplicateDetectionHistoryTimeWindow string       `xml:"DuplicateDetectionHistoryTimeWindow"`
	LockDuration                        string       `xml:"LockDuration"`
	MaxDeliveryCount                    int          `xml:"MaxDeliveryCount"`
	DefaultRule                         *description `xml:"DefaultRuleDescription"`
	Name                                string       `xml:"Name"`
	Filter                              struct {
		Type       string `xml:"http://www.w3.org/2001/XMLSchema-instance type,attr"`
		Properties []struct {
			Key   string `xml:"Key"`
			Value string `xml:"Value"`
		} `xml:"Properties>KeyValueOfstringanyType"`
	} `xml:"Filter"`
}

// rule is a rule of a subscription.
type rule struct {
	name   string
	xml    string
	filter map[string]string // the application properties that a message must have
	none   bool              // no message passes
}

// ruleOf returns the rule of a description. Of a correlation filter the fake compares
// only the application properties, and an SQL filter lets each message through.
func ruleOf(name string, d *description) rule {
	r := rule{name: cmp.Or(name, d.Name, "$Default"), xml: d.XML, filter: map[string]string{}, none: d.Filter.Type == "FalseFilter"}
	for _, p := range d.Filter.Properties {
		r.filter[p.Key] = p.Value
	}
	return r
}

// ruleFor returns the rule that lets messages with these application properties through.
func ruleFor(filter map[string]string) rule {
	var b strings.Builder
	if len(filter) == 0 {
		return rule{name: "$Default", xml: filterXML("TrueFilter", "<SqlExpression>1=1</SqlExpression>") + "<Name>$Default</Name>"}
	}
	for _, name := range slices.Sorted(maps.Keys(filter)) {
		fmt.Fprintf(&b, `<KeyValueOfstringanyType><Key>%s</Key><Value xmlns:d="%s" xmlns:i="%s-instance" i:type="d:string">%s</Value>`+
			`</KeyValueOfstringanyType>`, escape(name), schemaNamespace, schemaNamespace, escape(filter[name]))
	}
	properties := "<Properties>" + b.String() + "</Properties>"
	return rule{name: "filter", xml: filterXML("CorrelationFilter", properties) + "<Name>filter</Name>", filter: filter}
}

// filterXML returns a filter of that type.
func filterXML(kind, content string) string {
	return fmt.Sprintf(`<Filter xmlns:i="%s-instance" i:type="%s">%s</Filter>`, schemaNamespace, kind, content)
}

// managed is the path of a request: /topic/Subscriptions/name/Rules/name, or a part.
type managed struct {
	topic, subscription, rule string
	list                      string // what is listed: "", "Subscriptions" or "Rules"
}

// managedOf parses a path.
func managedOf(path string) (e managed) {
	e.topic = strings.Trim(path, "/")
	for _, part := range []struct {
		segment string
		name    *string
	}{{"/Rules", &e.rule}, {"/Subscriptions", &e.subscription}} {
		at := strings.LastIndex(e.topic, part.segment)
		if at < 0 {
			continue
		}
		*part.name = strings.Trim(e.topic[at+len(part.segment):], "/")
		if *part.name == "" {
			e.list = part.segment[1:]
		}
		e.topic = e.topic[:at]
	}
	return e
}

// manage answers one request.
func (s *Server) manage(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/atom+xml;charset=utf-8")
	if hook := s.hooks.Load().OnManage; hook != nil {
		if status := hook(r.Method, r.URL.Path); status != 0 {
			refuse(w, status)
			return
		}
	}
	e := managedOf(r.URL.Path)
	switch {
	case r.URL.Path == "/$namespaceinfo":
		fmt.Fprint(w, entryXML("namespace", "<NamespaceInfo><CreatedTime>2026-01-01T00:00:00Z</CreatedTime><MessagingSKU>"+
			cmp.Or(s.config.Tier, "Standard")+"</MessagingSKU><ModifiedTime>2026-01-01T00:00:00Z</ModifiedTime></NamespaceInfo>"))
	case r.Method == http.MethodPut:
		s.put(w, r, e)
	case r.Method == http.MethodGet:
		s.show(w, r, e)
	default:
		refuse(w, http.StatusMethodNotAllowed)
	}
}

// put creates an entity.
func (s *Server) put(w http.ResponseWriter, r *http.Request, e managed) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	var sent struct {
		Topic        *description `xml:"content>TopicDescription"`
		Subscription *description `xml:"content>SubscriptionDescription"`
		Rule         *description `xml:"content>RuleDescription"`
	}
	if err == nil {
		err = xml.Unmarshal(body, &sent)
	}
	status, shown := http.StatusBadRequest, ""
	switch {
	case err != nil:
	case sent.Topic != nil:
		status, shown = statusOf(s.createTopic(e, sent.Topic)), entryXML(e.topic, topicXML(sent.Topic.XML))
	case sent.Subscription != nil:
		status, shown = statusOf(s.createSubscription(e, sent.Subscription)),
			entryXML(e.subscription, subscriptionXML(sent.Subscription.XML))
	case sent.Rule != nil:
		status, shown = statusOf(s.createRule(e, sent.Rule)), entryXML(e.rule, ruleXML(sent.Rule.XML))
	}
	if status != http.StatusCreated {
		refuse(w, status)
		return
	}
	w.WriteHeader(status)
	fmt.Fprint(w, shown)
}

// statusOf returns the status that says how a creation ended.
func statusOf(err error) int {
	switch {
	case err == nil:
		return http.StatusCreated
	case errors.Is(err, ErrExists):
		return http.StatusConflict
	case errors.Is(err, ErrNoTopic):
		return http.StatusNotFound
	}
	return http.StatusBadRequest
}

// createTopic adds the topic that a description declares.
func (s *Server) createTopic(e managed, d *description) error {
	t := Topic{Name: e.topic, DuplicateWindow: -1, xml: d.XML}
	if d.RequiresDuplicateDetection {
		t.DuplicateWindow = seconds(d.DuplicateDetectionHistoryTimeWindow)
	}
	return s.AddTopic(t)
}

// createSubscription adds the subscription that a description declares.
func (s *Server) createSubscription(e managed, d *description) error {
	added := Subscription{Name: e.subscription, LockDuration: seconds(d.LockDuration), MaxDeliveries: d.MaxDeliveryCount, xml: d.XML}
	if d.DefaultRule != nil {
		added.rules = []rule{ruleOf("", d.DefaultRule)}
	}
	return s.AddSubscription(e.topic, added)
}

// createRule adds the rule that a description declares.
func (s *Server) createRule(e managed, d *description) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	q, ok := s.queues[normal(e.topic+"/Subscriptions/"+e.subscription)]
	if !ok {
		return ErrNoTopic
	}
	if slices.ContainsFunc(q.rules, func(r rule) bool { return r.name == e.rule }) {
		return ErrExists
	}
	q.rules = append(q.rules, ruleOf(e.rule, d))
	return nil
}

// show answers with an entity or a list. As Service Bus does, it answers with an empty
// list if there is no such entity.
func (s *Server) show(w http.ResponseWriter, r *http.Request, e managed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.topics[normal(e.topic)]
	var found []string
	switch {
	case t == nil:
	case e.list == "Subscriptions":
		for _, q := range t.subscriptions {
			found = append(found, entryXML(q.path[strings.LastIndexByte(q.path, '/')+1:], subscriptionXML(q.xml)))
		}
	case e.list == "Rules":
		if q := s.queues[normal(e.topic+"/Subscriptions/"+e.subscription)]; q != nil {
			for _, r := range q.rules {
				found = append(found, entryXML(r.name, ruleXML(r.xml)))
			}
		}
	case e.subscription == "":
		fmt.Fprint(w, entryXML(e.topic, topicXML(t.xml)))
		return
	}
	skip, _ := strconv.Atoi(r.URL.Query().Get("$skip"))
	top, err := strconv.Atoi(r.URL.Query().Get("$top"))
	if err != nil {
		top = 100
	}
	found = found[min(skip, len(found)):]
	found = found[:min(top, len(found))]
	fmt.Fprintf(w, `<feed xmlns="%s"><title type="text">Publicly Listed Services</title>%s</feed>`, atomNamespace, strings.Join(found, ""))
}

// refuse answers with an error.
func refuse(w http.ResponseWriter, status int) {
	w.WriteHeader(status)
	fmt.Fprintf(w, "<Error><Code>%d</Code><Detail>%s</Detail></Error>", status, http.StatusText(status))
}

// entryXML returns an entity as an ATOM entry.
func entryXML(name, content string) string {
	return fmt.Sprintf(`<entry xmlns="%s"><title type="text">%s</title><content type="application/xml">%s</content></entry>`,
		atomNamespace, escape(name), content)
}

func topicXML(inner string) string {
	return fmt.Sprintf(`<TopicDescription xmlns="%s">%s</TopicDescription>`, busNamespace, inner)
}

func subscriptionXML(inner string) string {
	return fmt.Sprintf(`<SubscriptionDescription xmlns="%s">%s</SubscriptionDescription>`, busNamespace, inner)
}

// ruleXML returns a rule. As Service Bus does, it always shows an action.
func ruleXML(inner string) string {
	if !strings.Contains(inner, "<Action") {
		inner += fmt.Sprintf(`<Action xmlns:i="%s-instance" i:type="EmptyRuleAction"/>`, schemaNamespace)
	}
	return fmt.Sprintf(`<RuleDescription xmlns="%s">%s</RuleDescription>`, busNamespace, inner)
}

// escape returns a text as XML.
func escape(text string) string {
	var b bytes.Buffer
	_ = xml.EscapeText(&b, []byte(text)) // A buffer never fails.
	return b.String()
}

// seconds parses a period of minutes or seconds, such as PT1M or PT600S. It returns 0
// for any other text.
func seconds(text string) time.Duration {
	d, err := time.ParseDuration(strings.ToLower(strings.TrimPrefix(text, "PT")))
	if err != nil {
		return 0
	}
	return d
}
