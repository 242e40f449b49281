package commands

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// Rerun is a request to execute an ended job again, as a new one, with corrections. A field that is
// empty leaves what the old job had.
type Rerun struct {
	ledger.Rerun

	Payload json.RawMessage
	// PayloadPatch is merged into the payload, as RFC 7396 says. Numbers keep their text.
	PayloadPatch json.RawMessage
	InputRef     json.RawMessage
	OutputRef    json.RawMessage
	WorkspaceRef json.RawMessage
	// Current takes the steps and policies of the current protocol.
	Current bool
}

// editsProtocol stands for the protocol among the pointers of what a rerun corrects. It is no member
// of a command.
const editsProtocol = "/protocol"

// maxRerunEdits is the size of the list of pointers that a job keeps, in bytes.
const maxRerunEdits = 1 << 10

// Check returns what is wrong with the corrections themselves, whatever job they are of.
func (r *Rerun) Check() error {
	_, err := r.corrections()
	return err
}

// Rerun creates a new job from one that has ended. There is one for each old job, starting point and
// set of corrections: a repeat returns the same. Corrections are checked as a command is, and the
// payload by the current schemas of the steps that will be executed. The errors are
// [*apierror.Error]s that name every violation.
func (s *Service) Rerun(ctx context.Context, r Rerun) (ledger.Accepted, error) {
	if err := s.complete(&r); err != nil {
		return ledger.Accepted{}, err
	}
	accepted, err := s.cfg.Ledger.Rerun(ctx, r.Rerun)
	return accepted, ledger.Problem(err)
}

// RerunPlan is what a rerun does.
type RerunPlan struct {
	ledger.RerunPlan
	// Changes are the differences that the new job keeps as its RerunEdits, but for the protocol.
	Changes []Change
	// Existing is the job that the same rerun made before, empty if there is none.
	Existing string
}

// Change is a difference between two commands. Was or Is is nil if the command has nothing there.
type Change struct {
	Pointer string
	Was, Is json.RawMessage
}

// PlanRerun returns what [Service.Rerun] would do, and does nothing. Its errors are those of Rerun,
// but for the tenant's limit.
func (s *Service) PlanRerun(ctx context.Context, r Rerun) (plan RerunPlan, err error) {
	if err := s.complete(&r); err != nil {
		return plan, err
	}
	if plan.RerunPlan, err = s.cfg.Ledger.PlanRerun(ctx, r.Rerun); err != nil || plan.Command == nil {
		return plan, ledger.Problem(err)
	}
	before, err := commandTree(&plan.Old.Job, plan.Payload)
	if err != nil {
		return plan, err
	}
	after, err := commandTree(&plan.Command.Job, plan.Command.Payload)
	if err != nil {
		return plan, err
	}
	for _, pointer := range plan.Command.Job.RerunEdits {
		if pointer != editsProtocol {
			plan.Changes = append(plan.Changes, Change{pointer, valueAt(before, pointer), valueAt(after, pointer)})
		}
	}
	existing, _, err := s.cfg.Ledger.Replay(ctx, *plan.Command)
	plan.Existing = existing.Job.ID
	return plan, ledger.Problem(err)
}

// complete sets what the ledger has to know of the corrections.
func (s *Service) complete(r *Rerun) error {
	corrected, err := r.corrections()
	if err != nil {
		return err
	}
	if len(corrected) > 0 || r.Current {
		r.Edit = func(old *statemachine.Aggregate, command *ledger.Command) error { return s.correct(r, old, command) }
	}
	if corrected["resolve"], err = parsed("/resolve/", r.Resolved); err != nil {
		return err
	}
	if r.Edit != nil || r.FromStep != "" || len(r.Resolved) > 0 {
		corrected["from_step"], corrected["current"] = r.FromStep, r.Current
		if gone := removed(corrected["payload_patch"], "", nil); gone != nil {
			corrected["removed"] = gone
		}
		r.Digest = HashCanonical(corrected)
	}
	return nil
}

// commandTree returns the tree of what a rerun may change in a command.
func commandTree(job *statemachine.Job, payload json.RawMessage) (any, error) {
	members := map[string]json.RawMessage{
		"payload": payload, "input_ref": job.InputRef, "output_ref": job.OutputRef, "workspace_ref": job.WorkspaceRef,
	}
	maps.DeleteFunc(members, func(_ string, text json.RawMessage) bool { return len(text) == 0 })
	tree, err := ParseJSON(object(members))
	if err != nil {
		return nil, fmt.Errorf("the command of an accepted job: %w", err)
	}
	return tree, nil
}

// valueAt returns the text of what a tree has at that pointer, nil if it has nothing there.
func valueAt(tree any, pointer string) json.RawMessage {
	for name := range jsontext.Pointer(pointer).Tokens() {
		members, _ := tree.(map[string]any)
		var ok bool
		if tree, ok = members[name]; !ok {
			return nil
		}
	}
	return AppendCanonical(nil, tree)
}

// texts returns the given corrections by their names.
func (r *Rerun) texts() map[string]json.RawMessage {
	texts := map[string]json.RawMessage{
		"payload": r.Payload, "payload_patch": r.PayloadPatch,
		"input_ref": r.InputRef, "output_ref": r.OutputRef, "workspace_ref": r.WorkspaceRef,
	}
	maps.DeleteFunc(texts, func(_ string, text json.RawMessage) bool { return text == nil })
	return texts
}

// corrections returns the trees of the given corrections by their names.
func (r *Rerun) corrections() (map[string]any, error) {
	if r.Payload != nil && r.PayloadPatch != nil {
		return nil, apierror.Refused([]apierror.Violation{{Pointer: "/payload_patch", Message: "must not be combined with payload"}})
	}
	trees, err := parsed("/", r.texts())
	for name, tree := range trees {
		if _, ok := tree.(map[string]any); !ok {
			return nil, apierror.Refused([]apierror.Violation{{Pointer: "/" + name, Message: "must be an object, not " + describe(tree)}})
		}
	}
	return trees, err
}

// parsed returns the trees of the texts, by the keys of the texts.
func parsed(pointer string, texts map[string]json.RawMessage) (map[string]any, error) {
	trees := map[string]any{}
	for id, text := range texts {
		var err error
		if trees[id], err = ParseJSON(text); err != nil {
			return nil, apierror.Below(pointer+id, err)
		}
	}
	return trees, nil
}

// correct applies the corrections to the command of a rerun. It makes a command of what the old job
// was accepted with and of the corrections, which [Decode] checks. It leaves out what is wrong with
// the parts that are not corrected: the policy may have changed since.
func (s *Service) correct(r *Rerun, old *statemachine.Aggregate, command *ledger.Command) error {
	job := &command.Job
	body := map[string]json.RawMessage{
		"input_ref": job.InputRef, "output_ref": job.OutputRef, "workspace_ref": job.WorkspaceRef, "payload": command.Payload,
	}
	corrected := map[string]bool{}
	for name, text := range r.texts() {
		if name == "payload_patch" {
			name, text = "payload", mergePatch(command.Payload, text)
		}
		body[name], corrected[name] = text, true
	}
	texts := map[string]string{
		"tenant_id": job.TenantID, "request_type": job.RequestType, "schema_version": job.SchemaVersion, "doc_id": job.DocID,
	}
	if job.Mode != statemachine.ModeDefault { // A job has this mode, too, if its command named none: then the protocol decides.
		texts["mode"] = string(job.Mode)
	}
	for name, text := range texts {
		if text != "" {
			body[name], _ = jsontext.AppendQuote(nil, text) // The text was accepted before: it is UTF-8.
		}
	}
	maps.DeleteFunc(body, func(_ string, text json.RawMessage) bool { return len(text) == 0 })
	edited, err := Decode(object(body), Headers{}, s.cfg.Policy)
	if err = onlyOf(corrected, err); err != nil {
		return err
	}
	if edited == nil {
		return errors.New("the command of an accepted job cannot be decoded")
	}

	proto, ok := s.cfg.Protocols.Load().Lookup(job.RequestType)
	if !ok {
		return &statemachine.NotRerunnableError{
			Reason: fmt.Sprintf("no protocol serves the request type %q now, so the job can only be rerun as it was", job.RequestType),
		}
	}
	if r.Current {
		if violations := proto.CheckSchemaVersion(job.SchemaVersion); len(violations) > 0 {
			return &apierror.Error{Code: apierror.SchemaVersionUnsupported, Errors: violations}
		}
		if command.Steps, err = s.steps(edited, proto); err != nil {
			return err
		}
		job.ProtocolID, job.ProtocolVersion = proto.ID, proto.Version
	}
	first, err := r.Start(old, command.Steps)
	if err != nil {
		return err
	}
	if r.Current || corrected["payload"] {
		executed := func(step *ProtocolStep) bool {
			same := func(one statemachine.Step) bool { return one.ID == step.ID && one.Type == step.Type }
			return slices.ContainsFunc(command.Steps[first:], same)
		}
		if violations := proto.validate(edited.PayloadTree, executed); len(violations) > 0 {
			return &apierror.Error{Code: apierror.PayloadInvalid, Errors: violations}
		}
	}
	was, err := commandTree(job, command.Payload)
	if err == nil && corrected["payload"] {
		err = proto.sameLine(job, was, edited)
	}
	if err != nil {
		return err
	}
	job.InputRef, job.OutputRef, job.WorkspaceRef = edited.InputRef, edited.OutputRef, edited.WorkspaceRef
	job.IdempotencyHash, command.Payload = edited.Hash, edited.Payload
	is, err := commandTree(job, command.Payload)
	job.RerunEdits = r.edits(was, is)
	return err
}

// edits returns the pointers of what differs between the command of the old job and the edited one, as
// many as a job keeps.
func (r *Rerun) edits(was, is any) []string {
	pointers := changed(was, is, "", nil)
	if r.Current {
		pointers = append(pointers, editsProtocol)
	}
	size := 0
	return slices.DeleteFunc(pointers, func(pointer string) bool {
		size += len(pointer) + 1
		return size > maxRerunEdits
	})
}

// object returns the JSON object of the members, whose texts it keeps.
func object(members map[string]json.RawMessage) []byte {
	text := []byte{'{'}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		if len(text) > 1 {
			text = append(text, ',')
		}
		text, _ = jsontext.AppendQuote(text, name)
		text = append(append(text, ':'), members[name]...)
	}
	return append(text, '}')
}

// onlyOf returns the error with those of its violations that point into the corrected fields, nil if
// there are none.
func onlyOf(corrected map[string]bool, err error) error {
	told, ok := errors.AsType[*apierror.Error](err)
	if !ok {
		return err
	}
	left := *told
	left.Errors = slices.DeleteFunc(slices.Clone(told.Errors), func(v apierror.Violation) bool {
		name, _, _ := strings.Cut(strings.TrimPrefix(v.Pointer, "/"), "/")
		return !corrected[name]
	})
	if len(left.Errors) == 0 {
		return nil
	}
	return &left
}

// mergePatch returns the object after a merge patch.
//
// Source: RFC 7396, 2.
func mergePatch(target, patch json.RawMessage) json.RawMessage {
	var into, from map[string]json.RawMessage
	if json.Unmarshal(patch, &from) != nil || from == nil {
		return patch // It is no object, and replaces the target.
	}
	if json.Unmarshal(target, &into) != nil || into == nil {
		into = map[string]json.RawMessage{}
	}
	for name, text := range from {
		if string(bytes.TrimSpace(text)) == "null" {
			delete(into, name)
			continue
		}
		into[name] = mergePatch(into[name], text)
	}
	return object(into)
}

// removed appends the pointers of the members that a merge patch removes. The canonical form has none
// of them: it leaves out nulls.
func removed(patch any, pointer jsontext.Pointer, pointers []any) []any {
	members, _ := patch.(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(members)) {
		at := pointer.AppendToken(name)
		if members[name] == nil {
			pointers = append(pointers, string(at))
		}
		pointers = removed(members[name], at, pointers)
	}
	return pointers
}

// changed appends the pointers of the members that differ between two trees.
func changed(was, is any, pointer jsontext.Pointer, pointers []string) []string {
	before, ok := was.(map[string]any)
	after, ok2 := is.(map[string]any)
	if !ok || !ok2 {
		if !reflect.DeepEqual(was, is) {
			pointers = append(pointers, string(pointer))
		}
		return pointers
	}
	names := slices.Collect(maps.Keys(before))
	for name := range after {
		if _, both := before[name]; !both {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		_, had := before[name]
		_, has := after[name]
		switch at := pointer.AppendToken(name); {
		case strings.ContainsFunc(name, unicode.IsControl): // The list has a line for each pointer, so it has the parent's.
			if !reflect.DeepEqual(before[name], after[name]) || had != has {
				pointers = append(pointers, string(pointer))
			}
		case had && has:
			pointers = changed(before[name], after[name], at, pointers)
		default:
			pointers = append(pointers, string(at))
		}
	}
	return slices.Compact(pointers)
}
