package commands_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// cancelled submits a command and cancels its job, whose id it returns.
func (b *bundle) cancelled(t *testing.T, body []byte) string {
	t.Helper()
	accepted, err := b.Submit(t.Context(), body, commands.Headers{}, anyone)
	musttest.NoError(t, err)
	b.ledger.Apply(accepted.Job.ID, statemachine.Cancel{})
	return accepted.Job.ID
}

// from returns a rerun of the job with corrections.
func from(jobID string, r commands.Rerun) commands.Rerun {
	if r.JobID = jobID; r.FromStep == "" {
		r.From = ledger.FromFailed
	}
	return r
}

func TestRerun_AppliesTheCorrections(t *testing.T) {
	t.Parallel()
	b := setup(t, 0)
	old := b.cancelled(t, ingest(`"n":1.50`, `"n":1.50,"deep":{"a":[1],"gone":true,"text":"<&>"}`))
	payload, err := b.ledger.Payload(t.Context(), old)
	musttest.NoError(t, err)
	for name, test := range map[string]struct {
		rerun   commands.Rerun
		payload string
		edits   string
	}{
		"none": {commands.Rerun{}, string(payload), ""},
		"a patch": {
			commands.Rerun{PayloadPatch: json.RawMessage(`{"language":"de","deep":{"gone":null,"new":{"x":null,"y":2.0}}}`)},
			`{"deep":{"a":[1],"new":{"y":2.0},"text":"<&>"},"language":"de","n":1.50}`, "/payload/deep/gone /payload/deep/new /payload/language",
		},
		"a patch that changes nothing": {commands.Rerun{PayloadPatch: json.RawMessage(`{"n":15e-1}`)}, `{"deep":{"a":[1],"gone":true,"text":"<&>"},"language":"en","n":15e-1}`, ""},
		"another payload":              {commands.Rerun{Payload: json.RawMessage(`{"language": "fr"}`)}, `{"language": "fr"}`, "/payload/deep /payload/language /payload/n"},
		"references": {
			commands.Rerun{InputRef: json.RawMessage(`{"uri":"s3://b/corrected"}`), OutputRef: json.RawMessage(`{"uri":"s3://b/out"}`), WorkspaceRef: json.RawMessage(`{"uri":"s3://b/w"}`)},
			string(payload), "/input_ref/uri /workspace_ref",
		},
		"a step done by hand": {commands.Rerun{Rerun: ledger.Rerun{Resolved: map[string]json.RawMessage{"ocr": json.RawMessage(`{"uri":"file:///by-hand"}`)}}}, string(payload), ""},
	} {
		plan, err := b.PlanRerun(t.Context(), from(old, test.rerun))
		if err != nil || plan.Existing != "" || pointersOf(plan.Changes) != test.edits {
			t.Errorf("%s: the plan is %+v, %v", name, plan, err)
		}
		accepted, err := b.Rerun(t.Context(), from(old, test.rerun))
		if err != nil || accepted.Replayed {
			t.Errorf("%s: %+v, %v", name, accepted, err)
			continue
		}
		got, err := b.ledger.Payload(t.Context(), accepted.Job.ID)
		agg := b.ledger.Read(accepted.Job.ID)
		if err != nil || string(got) != test.payload || strings.Join(agg.Job.RerunEdits, " ") != test.edits {
			t.Errorf("%s: the payload is %s, with the edits %v, %v", name, got, agg.Job.RerunEdits, err)
		}
		if test.rerun.InputRef != nil && (string(agg.Job.InputRef) != `{"uri":"s3://b/corrected"}` || string(agg.Steps[0].InputRef) != string(agg.Job.InputRef)) {
			t.Errorf("%s: the input is %s, for the step %s", name, agg.Job.InputRef, agg.Steps[0].InputRef)
		}
		if test.rerun.Resolved != nil && (agg.Job.CurrentStepID != "burst" || string(agg.Steps[1].InputRef) != `{"uri":"file:///by-hand"}`) {
			t.Errorf("%s: step %s runs with the input %s", name, agg.Job.CurrentStepID, agg.Steps[1].InputRef)
		}
		again, err := b.Rerun(t.Context(), from(old, test.rerun))
		if err != nil || !again.Replayed || again.Job.ID != accepted.Job.ID {
			t.Errorf("%s: once more it is %+v, %v", name, again, err)
		}
		if plan, err = b.PlanRerun(t.Context(), from(old, test.rerun)); err != nil || plan.Existing != accepted.Job.ID {
			t.Errorf("%s: the plan of a repeat is %+v, %v", name, plan, err)
		}
	}
	found, _, err := b.ledger.Lineage(t.Context(), old, 100)
	if err != nil || len(found) != 7 {
		t.Errorf("the lineage has %d jobs, %v", len(found), err)
	}
}

func pointersOf(changes []commands.Change) string {
	var pointers []string
	for _, change := range changes {
		pointers = append(pointers, change.Pointer)
	}
	return strings.Join(pointers, " ")
}

// A null of a patch is a correction, though the canonical form of a command leaves it out.
func TestRerun_TellsApartWhichMembersAPatchRemoves(t *testing.T) {
	t.Parallel()
	b := setup(t, 0)
	old := b.cancelled(t, ingest(`"n":1.50`, `"n":1.50,"deep":{"a":1,"b":2}`))
	made := map[string]string{}
	for _, patch := range []string{`{}`, `{"n":null}`, `{"deep":null}`, `{"deep":{"a":null}}`, `{"deep":{"b":null}}`, `{"deep":{"b":null},"n":null}`} {
		rerun := from(old, commands.Rerun{PayloadPatch: json.RawMessage(patch)})
		accepted, err := b.Rerun(t.Context(), rerun)
		if err != nil || accepted.Replayed {
			t.Errorf("%s: %+v, %v", patch, accepted, err)
		}
		made[patch] = accepted.Job.ID
	}
	for patch, id := range made {
		rerun := from(old, commands.Rerun{PayloadPatch: json.RawMessage(" " + patch)})
		if again, err := b.Rerun(t.Context(), rerun); err != nil || !again.Replayed || again.Job.ID != id {
			t.Errorf("%s once more: %+v, %v", patch, again, err)
		}
	}
}

// A pointer with a control character would break the list of pointers, which has a line for each: the
// object that has the member stands for it.
func TestPlanRerun_NamesTheParentOfAMemberThatCannotBeListed(t *testing.T) {
	t.Parallel()
	b := setup(t, 0)
	old := b.cancelled(t, ingest(`"n":1.50`, `"n":1.50,"x":5,"a\nb":{"x":1},"c\nd":1`))
	plan, err := b.PlanRerun(t.Context(), from(old, commands.Rerun{PayloadPatch: json.RawMessage(`{"a\nb":{"x":2}}`)}))
	musttest.NoError(t, err)
	if got := pointersOf(plan.Changes); got != "/payload" || !strings.Contains(string(plan.Changes[0].Is), `"a\nb":{"x":2}`) {
		t.Errorf("the changes are %s: %s", got, plan.Changes)
	}
}

func TestPlanRerun_TellsWhatWouldRunWithWhat(t *testing.T) {
	t.Parallel()
	b := setup(t, 0)
	old := b.cancelled(t, ingest(`"n":1.50`, `"n":1.50,"deep":{"a":[1]}`))
	plan, err := b.PlanRerun(t.Context(), from(old, commands.Rerun{
		PayloadPatch: json.RawMessage(`{"n":null,"deep":{"a":[1,2]},"new":"x"}`),
		Rerun:        ledger.Rerun{Resolved: map[string]json.RawMessage{"ocr": json.RawMessage(`{"uri":"file:///by-hand"}`)}},
	}))
	musttest.NoError(t, err)
	var told []string
	for _, change := range plan.Changes {
		told = append(told, fmt.Sprintf("%s: %s -> %s", change.Pointer, change.Was, change.Is))
	}
	want := []string{`/payload/deep/a: [1] -> [1,2]`, `/payload/n: 1.5 -> `, `/payload/new:  -> "x"`}
	if !slices.Equal(told, want) || plan.First != 1 || plan.Command.Steps[0].Outcome != statemachine.StepResolved {
		t.Errorf("the plan runs step %d of %+v and changes %q", plan.First, plan.Command.Steps, told)
	}
	if found, _, err := b.ledger.Lineage(t.Context(), old, 100); err != nil || len(found) != 1 {
		t.Errorf("a plan made a job: %d, %v", len(found), err)
	}
}

func TestRerun_RefusesACorrectionAndNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	b := setup(t, 0)
	old := b.cancelled(t, ingest())
	for name, test := range map[string]struct {
		rerun   commands.Rerun
		code    apierror.Code
		pointer string
	}{
		"a payload and a patch":        {commands.Rerun{Payload: json.RawMessage(`{}`), PayloadPatch: json.RawMessage(`{}`)}, apierror.InvalidEnvelope, "/payload_patch"},
		"a patch that is a list":       {commands.Rerun{PayloadPatch: json.RawMessage(`[]`)}, apierror.InvalidEnvelope, "/payload_patch"},
		"a patch with a key twice":     {commands.Rerun{PayloadPatch: json.RawMessage(`{"a":1,"a":2}`)}, apierror.InvalidJSON, "/payload_patch/a"},
		"a patch against the schema":   {commands.Rerun{PayloadPatch: json.RawMessage(`{"language":7}`)}, apierror.PayloadInvalid, "/payload/language"},
		"a payload against the schema": {commands.Rerun{Payload: json.RawMessage(`{}`)}, apierror.PayloadInvalid, "/payload/language"},
		"a large payload":              {commands.Rerun{PayloadPatch: json.RawMessage(`{"x":"` + strings.Repeat("x", 128<<10) + `"}`)}, apierror.TooLarge, "/payload"},
		"another scheme":               {commands.Rerun{InputRef: json.RawMessage(`{"uri":"ftp://b/in"}`)}, apierror.RefInvalid, "/input_ref/uri"},
		"no such step":                 {commands.Rerun{Rerun: ledger.Rerun{FromStep: "index"}}, apierror.IllegalTransition, ""},
		"nothing left": {commands.Rerun{Rerun: ledger.Rerun{Resolved: map[string]json.RawMessage{
			"ocr": json.RawMessage(`{"uri":"x"}`), "burst": json.RawMessage(`{"uri":"x"}`),
		}}}, apierror.NothingToRun, ""},
	} {
		_, err := b.Rerun(t.Context(), from(old, test.rerun))
		if _, planned := b.PlanRerun(t.Context(), from(old, test.rerun)); fmt.Sprint(planned) != fmt.Sprint(err) {
			t.Errorf("%s: the plan says %v, and the rerun %v", name, planned, err)
		}
		var told *apierror.Error
		if !errors.As(err, &told) || told.Code != test.code || test.pointer != "" && (len(told.Errors) == 0 || told.Errors[0].Pointer != test.pointer) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if found, _, err := b.ledger.Lineage(t.Context(), old, 100); err != nil || len(found) != 1 {
		t.Errorf("a refused rerun made a job: %d, %v", len(found), err)
	}
}

// A rerun stays in the line of its old job: it must not become a job of another key.
func TestRerun_KeepsWhatTheProtocolTakesTheOrderKeyFrom(t *testing.T) {
	t.Parallel()
	b := orderedBy(t, "order: {key: /language}")
	english, none := b.cancelled(t, ingest()), b.cancelled(t, ingest(`"language":"en",`, ""))
	named := b.cancelled(t, ingest(`"tenant_id"`, `"order_key":"k","tenant_id"`, `1.50`, `3`))
	for name, test := range map[string]struct {
		job, payload, patch string
		refused             string
	}{
		"another key":                {english, "", `{"language":"de"}`, "must not change"},
		"another key in a payload":   {english, `{"language":"de"}`, "", "must not change"},
		"no key":                     {english, "", `{"language":null}`, "must not change"},
		"a bad key":                  {english, "", `{"language":" "}`, "must not be empty"},
		"the same key":               {english, "", `{"n":2}`, ""},
		"the first key":              {none, "", `{"language":"de"}`, "must not change"},
		"the key of the command":     {named, "", `{"language":"de"}`, ""},
		"another part without a key": {none, "", `{"n":2}`, ""},
	} {
		rerun := commands.Rerun{}
		if test.payload != "" {
			rerun.Payload = json.RawMessage(test.payload)
		} else {
			rerun.PayloadPatch = json.RawMessage(test.patch)
		}
		accepted, err := b.Rerun(t.Context(), from(test.job, rerun))
		told, refused := errors.AsType[*apierror.Error](err)
		switch {
		case refused != (test.refused != ""), !refused && (err != nil || accepted.Job.Order.Key != b.ledger.Read(test.job).Job.Order.Key):
			t.Errorf("%s: %+v, %v", name, accepted.Job.Order, err)
		case refused && (told.Code != apierror.PayloadInvalid || len(told.Errors) != 1 || told.Errors[0].Pointer != "/payload/language" ||
			!strings.Contains(told.Errors[0].Message, test.refused)):
			t.Errorf("%s: refused with %s %+v", name, told.Code, told.Errors)
		}
	}
	for job, want := range map[string]int{english: 2, none: 2, named: 2} {
		if found, _, err := b.ledger.Lineage(t.Context(), job, 100); err != nil || len(found) != want {
			t.Errorf("the lineage has %d jobs, want %d (%v)", len(found), want, err)
		}
	}
}

// The policy and the protocol may have changed since the job was accepted: that refuses corrections
// of what they are about, and no others.
func TestRerun_HoldsCorrectionsAgainstThePresent(t *testing.T) {
	t.Parallel()
	b := setup(t, 0)
	old := b.cancelled(t, ingest())
	b.restart(t, commands.Policy{AllowedRefs: []string{"azure"}})
	narrower := strings.Replace(file, "language: {type: string}", "language: {enum: [de]}, n: {type: string}", 1) +
		"  - {step_id: index, step_type: INDEX, service: i, input: previous}\n"
	narrower = strings.Replace(narrower, "protocol_id: ingest_v1", "protocol_id: ingest_v1\nversion: \"2\"", 1)
	b.protocols.Swap(musttest.Make[fs.FS](t, commands.LoadProtocolsFS, fstest.MapFS{"ingest.yaml": {Data: []byte(narrower)}}))
	refused := func(r commands.Rerun) (pointers []string) {
		_, err := b.Rerun(t.Context(), from(old, r))
		if told, ok := errors.AsType[*apierror.Error](err); ok {
			for _, violation := range told.Errors {
				pointers = append(pointers, violation.Pointer)
			}
		} else if err != nil {
			t.Error(err)
		}
		return pointers
	}
	for _, test := range []struct {
		rerun commands.Rerun
		want  string
	}{
		{commands.Rerun{}, ""},
		{commands.Rerun{InputRef: json.RawMessage(`{"uri":"azure://b/in"}`)}, ""},
		{commands.Rerun{InputRef: json.RawMessage(`{"uri":"s3://b/in"}`)}, "/input_ref/uri"},
		{commands.Rerun{PayloadPatch: json.RawMessage(`{"x":1}`)}, "/payload/language /payload/n"},
		{commands.Rerun{PayloadPatch: json.RawMessage(`{"language":"de","n":"1"}`)}, ""},
		{commands.Rerun{Current: true}, "/payload/language /payload/n"},
		// The step that has the schema was done by hand.
		{commands.Rerun{Current: true, Rerun: ledger.Rerun{Resolved: map[string]json.RawMessage{"ocr": json.RawMessage(`{"uri":"x"}`)}}}, ""},
	} {
		if got := refused(test.rerun); strings.Join(got, " ") != test.want {
			t.Errorf("%+v: refused %v, want %q", test.rerun, got, test.want)
		}
	}
	current, err := b.Rerun(t.Context(), from(old, commands.Rerun{Current: true, PayloadPatch: json.RawMessage(`{"language":"de","n":"1"}`)}))
	musttest.NoError(t, err)
	agg := b.ledger.Read(current.Job.ID)
	if len(agg.Steps) != 3 || agg.Job.ProtocolVersion != "2" || !slices.Contains(agg.Job.RerunEdits, "/protocol") {
		t.Errorf("on the current protocol: %+v", agg.Job)
	}
	b.protocols.Swap(musttest.Make[fs.FS](t, commands.LoadProtocolsFS, fstest.MapFS{"other.yaml": {Data: []byte(strings.Replace(file, "doc.ingest", "doc.other", 1))}}))
	if accepted, err := b.Rerun(t.Context(), commands.Rerun{Rerun: ledger.Rerun{JobID: old, From: ledger.FromStart}}); err != nil || accepted.Replayed {
		t.Errorf("a plain rerun needs no protocol: %v", err)
	}
	_, err = b.Rerun(t.Context(), from(old, commands.Rerun{PayloadPatch: json.RawMessage(`{"y":1}`)}))
	var told *apierror.Error
	if !errors.As(err, &told) || told.Code != apierror.IllegalTransition {
		t.Errorf("without a protocol: %v", err)
	}
}
