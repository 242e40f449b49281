package console

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// selection says which jobs an action on many jobs is for: by their ids, or by filters that
// have the names of the API's.
type selection struct {
	api.OperationFilter

	JobIDs []string
}

// selectionOf reads the selection from the request's parameters.
func selectionOf(r *request) (s selection, err error) {
	ticked := r.FormValue("ticked") != "" // FormValue parses the form as well.
	known := map[string]bool{}            // Without script the form's URL repeats the ids.
	for _, ids := range r.Form["job"] {
		for id := range strings.FieldsSeq(strings.ReplaceAll(ids, ",", " ")) {
			if strings.HasPrefix(id, "-") {
				return s, badInput(fmt.Sprintf("%q is not an id.", id))
			}
			if !known[id] {
				known[id] = true
				s.JobIDs = append(s.JobIDs, id)
			}
		}
	}
	if ticked && len(s.JobIDs) == 0 {
		return s, badInput("Tick the jobs first.")
	}
	if ticked { // The state is that of the list, as the default of what to do with them.
		return s, nil
	}
	s.TenantID, s.RequestType, s.Service = r.FormValue("tenant_id"), r.FormValue("request_type"), r.FormValue("service")
	s.StepType, s.ErrorCode, s.State = r.FormValue("step_type"), r.FormValue("error_code"), api.JobState(r.FormValue("state"))
	s.DocID = r.FormValue("doc_id")
	tags := slices.DeleteFunc(slices.Clone(r.Form["tag"]), func(tag string) bool { return tag == "" })
	slices.Sort(tags) // Without script the form's URL repeats the tags.
	if s.Tags, err = api.ParseTags(slices.Compact(tags)); err != nil {
		return s, badInput("The " + err.Error() + ".")
	}
	for name, at := range map[string]*api.Time{
		"created_after": &s.CreatedAfter, "created_before": &s.CreatedBefore,
		"ended_after": &s.EndedAfter, "ended_before": &s.EndedBefore,
	} {
		text := r.FormValue(name)
		if text == "" || at.Bind(text) == nil || at.Bind(text+"Z") == nil || at.Bind(text+":00Z") == nil { // Browsers omit the zone.
			continue
		}
		return s, badInput(fmt.Sprintf("The time %q is not like 2026-01-27T10:00:00Z.", text))
	}
	return s, nil
}

// empty reports whether it selects all jobs, or all that were accepted before a time.
func (s *selection) empty() bool {
	filters := s.OperationFilter
	filters.CreatedBefore = api.Time{}
	return len(s.JobIDs) == 0 && filters.All()
}

// ended reports whether it selects only jobs that ended within a time.
func (s *selection) ended() bool { return !s.EndedAfter.IsZero() || !s.EndedBefore.IsZero() }

// args returns the selection as arguments of the command line.
func (s *selection) args() []string {
	args := append(slices.Clone(s.JobIDs), s.flags()...)
	if s.empty() {
		args = append([]string{"--all"}, args...)
	}
	return args
}

// query returns the filters as pairs of [link].
func (s *selection) query() []any {
	return append(s.tagQuery(), "tenant_id", s.TenantID, "doc_id", s.DocID, "state", s.State,
		"request_type", s.RequestType, "service", s.Service, "step_type", s.StepType, "error_code", s.ErrorCode,
		"created_after", stamp(s.CreatedAfter), "created_before", stamp(s.CreatedBefore),
		"ended_after", stamp(s.EndedAfter), "ended_before", stamp(s.EndedBefore))
}

// tagQuery returns the tags as pairs of [link].
func (s *selection) tagQuery() (pairs []any) {
	for _, tag := range s.Tags.List() {
		pairs = append(pairs, "tag", tag)
	}
	return pairs
}

// tagParams returns the tags as parameters of the API.
func (s *selection) tagParams() *[]string {
	if len(s.Tags) == 0 {
		return nil
	}
	return new(s.Tags.List())
}

// flags returns the filters as flags of the command line.
func (s *selection) flags() []string {
	var tags []string
	for _, tag := range s.Tags.List() {
		tags = append(tags, diagnosis.Flag("tag", tag)...)
	}
	return slices.Concat(
		diagnosis.Flag("tenant", s.TenantID), diagnosis.Flag("doc", s.DocID), tags,
		diagnosis.Flag("request-type", s.RequestType), diagnosis.Flag("service", s.Service),
		diagnosis.Flag("step-type", s.StepType), diagnosis.Flag("code", s.ErrorCode), diagnosis.Flag("state", string(s.State)),
		flagAt("created-after", s.CreatedAfter), flagAt("created-before", s.CreatedBefore),
		flagAt("ended-after", s.EndedAfter), flagAt("ended-before", s.EndedBefore))
}

// first returns the job ids and the limit of a request for at most limit jobs; 0 means all. It cuts the
// ids, since the API applies a limit only to filters.
func (s *selection) first(limit int32) ([]string, int32) {
	if len(s.JobIDs) == 0 || limit == 0 {
		return s.JobIDs, limit
	}
	return s.JobIDs[:min(int(limit), len(s.JobIDs))], 0
}

func flagAt(name string, at api.Time) []string {
	if at.IsZero() {
		return nil
	}
	return diagnosis.Flag(name, at.String())
}

// beginBulk starts an operation on many jobs, at most limit unless that is 0, or with dryRun
// previews it. A repeat with the same key starts no second operation.
type beginBulk func(ctx context.Context, key *string, dryRun bool, limit int32, reason string) (*http.Response, error)

const (
	// mostUntyped is the most jobs that an operation may change without a typed confirmation.
	mostUntyped = 1000
	// fewFirst is how many jobs the button "Try three first" changes.
	fewFirst = 3
)

// bulk completes a deed that starts an operation on many jobs. The form has an idempotency
// key, so that sending it twice starts one operation. Counting the jobs may take long, so a
// dialog opens without their count, and asks for it. The dialog's requests replace each other: the
// button in an answer to an earlier dialog would replace that of a later one.
func bulk(r *request, would deed, begin beginBulk) deed {
	key := cmp.Or(r.FormValue("key"), uuid.NewString())
	would.Sent = map[string]string{"key": key}
	would.do = func(ctx context.Context, reason string) (string, error) {
		key, limit := key, int32(0)
		shown, _ := strconv.Atoi(r.PostFormValue("shown")) // Only a form that has counted tells.
		typed := strings.NewReplacer(",", "", " ", "").Replace(r.PostFormValue("typed"))
		switch {
		case r.PostFormValue("few") != "":
			key, limit = key+"-few", fewFirst
		case shown == 0 && r.Header.Get("HX-Request") != "": // A dialog must not start more jobs than its user saw.
			return "", badInput("Wait for the count.")
		case shown > mostUntyped && typed != strconv.Itoa(shown):
			return "", badInput("Type how many jobs it changes, " + diagnosis.Number(shown) + ", or try three first.")
		case shown > 0: // The operation selects the jobs that match now, and the form may have been open for long.
			preview, err := call[api.OperationPreview](begin(ctx, nil, true, 0, ""))
			if n := min(preview.Matched, api.MaxBulkJobs); err == nil && n > mostUntyped && n > shown+shown/10 {
				err = badInput("Now " + diagnosis.Counted(n, "job matches", "jobs match") + ", many more than when they were counted.")
			}
			if err != nil {
				return "", err
			}
		}
		op, err := call[api.Operation](begin(ctx, &key, false, limit, reason))
		return link("operations/" + op.OperationID), err
	}
	would.look = func(ctx context.Context, d *deed) error {
		preview, err := call[api.OperationPreview](begin(ctx, nil, true, 0, ""))
		if err != nil {
			return err
		}
		d.Preview, d.Changes = &preview, min(preview.Matched, api.MaxBulkJobs)
		if d.Changes > 0 {
			d.Button += " " + diagnosis.Counted(d.Changes, "job", "jobs") // "Cancel" alone would read as "close this form".
		}
		return nil
	}
	would.Counting = r.Header.Get("HX-Target") == "dialog"
	return would
}
