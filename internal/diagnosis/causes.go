package diagnosis

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/lucius-project/lucius/api"
)

// The kinds of findings that [Fold] merges. A finding's id begins with its kind.
const (
	kindError    = "error"     // a service fails with an error
	kindNoWorker = "no-worker" // a service has no worker
	kindNoACK    = "no-ack"    // a service on Service Bus acknowledges nothing
	kindBacklog  = "backlog"   // a service is slow
	kindCircuit  = "circuit"   // a topic is out of service
)

// mostID is the longest id of a finding, in bytes.
const mostID = 120

// causeID returns the id of a finding of that kind about the named service, error or circuit.
func causeID(kind string, names ...string) string {
	parts := []string{kind}
	for _, name := range names {
		parts = append(parts, url.QueryEscape(name))
	}
	return bounded(strings.TrimRight(strings.Join(parts, ":"), ":"))
}

// ofTenant returns the id of a finding about one tenant.
func ofTenant(id, tenant string) string {
	if tenant == "" {
		return id
	}
	return bounded(id + "@" + url.QueryEscape(tenant))
}

// bounded shortens an id to [mostID] bytes. A hash of the whole id keeps it unique.
func bounded(id string) string {
	if len(id) <= mostID {
		return id
	}
	sum := fmt.Sprintf("-%x", sha256.Sum224([]byte(id)))
	return id[:mostID-len(sum)] + sum
}

// warningID returns the id of a server warning. It ignores the numbers in the text, which change.
func warningID(warning string) string {
	words := strings.Map(func(r rune) rune {
		if unicode.IsDigit(r) {
			return -1
		}
		return r
	}, warning)
	sum := sha256.Sum256([]byte(words))
	return fmt.Sprintf("warning:%x", sum[:6])
}

func (f *Finding) kind() string {
	kind, _, _ := strings.Cut(f.ID, ":")
	return kind
}

// wholeBus reports whether the circuit is that of the whole bus.
func wholeBus(circuit string) bool { return circuit == "*" || circuit == "bus" }

// Fold merges findings with the same cause, and merges each symptom into its cause.
func Fold(found []Finding) (causes []Finding) {
	rank := func(f *Finding) int { // Causes come before their symptoms.
		switch f.kind() {
		case kindCircuit:
			if wholeBus(strings.TrimPrefix(f.ID, kindCircuit+":")) {
				return 0
			}
			return 1
		case kindBacklog, kindNoACK:
			return 3
		default:
			return 2
		}
	}
	slices.SortStableFunc(found, func(a, b Finding) int { return cmp.Compare(rank(&a), rank(&b)) })
	for i := range found {
		f := &found[i]
		if at := slices.IndexFunc(causes, func(c Finding) bool { return c.explains(f) }); at >= 0 {
			causes[at].merge(f)
		} else {
			causes = append(causes, *f)
		}
	}
	return causes
}

// explains reports whether f is the cause of the other finding: a failing service or an open circuit
// causes a backlog, and circuits that open for the same reason have the same cause.
func (f *Finding) explains(other *Finding) bool {
	if f.ID == other.ID {
		return true
	}
	switch other.kind() {
	case kindBacklog:
		return f.kind() == kindCircuit || f.kind() == kindError && f.Service == other.Service
	case kindNoACK:
		return f.kind() == kindCircuit
	case kindCircuit:
		return f.kind() == kindCircuit && (wholeBus(strings.TrimPrefix(f.ID, kindCircuit+":")) ||
			f.Notes[0].holds(other.Notes[0]))
	}
	return false
}

// merge adds the other finding, a symptom or another case of the same cause, to f.
func (f *Finding) merge(other *Finding) {
	f.Notes = append(f.Notes, say(other.Subject, " ", other.Text))
	if other.Level == LevelBad {
		f.Level = LevelBad
	}
	if f.kind() != other.kind() {
		return // A symptom ends with its cause, so its own actions are left out.
	}
	switch {
	case f.kind() != kindCircuit:
		f.Weight, f.Notes = f.Weight+other.Weight, append(f.Notes, other.Notes...)
	case !f.Notes[0].holds(other.Notes[0]):
		f.Notes = append(f.Notes, other.Notes[0])
	}
	for _, action := range other.Actions {
		if !slices.ContainsFunc(f.Actions, func(a Action) bool { return a.Text == action.Text && a.Command == action.Command }) {
			f.Actions = append(f.Actions, action)
		}
	}
}

// byCause merges groups of failures that differ only in the step type, and sorts them by size. It
// leaves out resolved and retrying groups.
func byCause(groups []api.FailureGroup) (causes []api.FailureGroup) {
	for i := range groups {
		g := &groups[i]
		if g.Resolved || g.Retrying {
			continue
		}
		at := slices.IndexFunc(causes, func(c api.FailureGroup) bool { return c.Service == g.Service && c.ErrorCode == g.ErrorCode })
		if at < 0 {
			causes = append(causes, *g)
			continue
		}
		c := &causes[at]
		c.StepType, c.Count, c.Histogram = "", c.Count+g.Count, slices.Clone(c.Histogram)
		for j := range min(len(c.Histogram), len(g.Histogram)) {
			c.Histogram[j] += g.Histogram[j]
		}
		if g.FirstAt.Before(c.FirstAt.Time) {
			c.FirstAt = g.FirstAt
		}
		if g.LastAt.After(c.LastAt.Time) {
			c.LastAt, c.SampleMessage = g.LastAt, cmp.Or(g.SampleMessage, c.SampleMessage)
		}
		c.Tenants = nil // Each group lists only its largest tenants, so the sums are not known.
	}
	slices.SortStableFunc(causes, func(a, b api.FailureGroup) int { return cmp.Compare(b.Count, a.Count) })
	return causes
}

// tenantsOf names the tenants of a group of failures.
func tenantsOf(g *api.FailureGroup) Sentence {
	if g.TenantCount == 1 {
		return say("all of tenant ", g.Tenants[0].TenantID)
	}
	names := make([]string, len(g.Tenants))
	for i, tenant := range g.Tenants {
		names[i] = tenant.TenantID + " " + Number(tenant.Count)
	}
	text := "of tenants " + strings.Join(names, ", ")
	if more := g.TenantCount - len(names); more > 0 {
		text += " and " + Counted(more, "other", "others")
	}
	return say(text)
}

// failingCode returns the service's most frequent error code among steps that are retried, or else
// that of its last permanent failure within the hour.
func (s *Situation) failingCode(of *api.Service) (code string) {
	if of.TopError.Count > 0 {
		return of.TopError.ErrorCode
	}
	last := s.Now.Add(-time.Hour)
	for i := range s.Tenants {
		for _, g := range byCause(s.Tenants[i].Failures.Groups) {
			if g.Service == of.Service && g.LastAt.After(last) {
				code, last = g.ErrorCode, g.LastAt.Time
			}
		}
	}
	return code
}

func quiet(f *Finding) int {
	if f.Quiet {
		return 1
	}
	return 0
}

// Open returns the findings that no operator has acknowledged or snoozed. [Findings] sorts them first.
func Open(found []Finding) []Finding {
	if at := slices.IndexFunc(found, func(f Finding) bool { return f.Quiet }); at >= 0 {
		return found[:at]
	}
	return found
}

// annotate adds the finding's mark, the last operation about it, and the action that sets a mark.
func (s *Situation) annotate(f *Finding) {
	for i := range s.Marks {
		m := &s.Marks[i]
		if m.FindingID == f.ID && m.TenantID == f.Tenant && m.Until.After(s.Now) && !f.Since.After(m.At.Time) {
			f.Quiet = m.State != api.MarkStateOpen
			f.Notes = append([]Sentence{s.saidOf(m)}, f.Notes...)
			break
		}
	}
	if op := s.lastDone(f); op != nil {
		f.Notes = append([]Sentence{doneAbout(op)}, f.Notes...)
		f.Actions = append(f.Actions, Action{
			Text: "Show the operation", Page: "operations/" + url.PathEscape(op.OperationID),
			Command: Command("operations get", op.OperationID),
		})
	}
	text, as := "Acknowledge…", api.MarkStateAcknowledged
	if f.Quiet {
		text, as = "Reopen…", api.MarkStateOpen
	}
	f.Mark = Action{
		Text: text, Page: "do/finding-mark", Query: []any{"finding", f.ID, "tenant_id", f.Tenant, "as", as}, Form: true,
		Command: CommandWith("attention mark", "", f.ID, "as", as),
	}
}

// saidOf words a mark: who set it, when and why.
func (s *Situation) saidOf(m *api.Mark) Sentence {
	said := string(m.State)
	if m.State == api.MarkStateOpen {
		said = "noted"
	}
	text := say(said, " by ", m.Actor, " ", when{Ago, m.At.Time})
	if m.Note != "" {
		text = say(text, ": “", Brief(m.Note, BriefMessage), "”")
	}
	if m.State != api.MarkStateOpen {
		text = say(text, ", returns ", when{In, m.Until.Time})
	}
	return text
}
