package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/routing"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// Config configures a [Service].
type Config struct {
	// Ledger keeps the jobs. Required.
	Ledger *ledger.Ledger
	// Protocols maps request types to protocols. Required.
	Protocols *ProtocolHolder
	// Router chooses the lanes. Required.
	Router *routing.Router
	// Policy limits what a command may hold.
	Policy Policy
	// Defaults are the timeouts and budgets that a protocol does not set.
	Defaults statemachine.Policy
}

// Service accepts commands. It is safe for concurrent use.
type Service struct{ cfg Config }

// New returns a service. The error names the invalid field of the policy.
func New(cfg Config) (*Service, error) {
	if err := cfg.Policy.Validate(); err != nil {
		return nil, fmt.Errorf("commands: %w", err)
	}
	return &Service{cfg: cfg}, nil
}

// Authorize returns the problem of a caller that may not submit commands for the
// tenant, or nil.
type Authorize func(tenantID string) error

// Submission is a decoded command. It holds the command's bytes, but not its tree.
type Submission struct {
	ledger  *ledger.Ledger
	command ledger.Command
	refused error // Why the command cannot be accepted, unless it was before.
}

// Prepare decodes a command, and checks it against its protocol. It calls authorize with
// the job's tenant before it looks anything up; it does not call the store. The errors
// are those of authorize, or [*apierror.Error]s that name every violation.
func (s *Service) Prepare(body []byte, headers Headers, authorize Authorize) (*Submission, error) {
	command, refused := Decode(body, headers, s.cfg.Policy)
	if command == nil {
		return nil, refused
	}
	if err := authorize(command.TenantID); err != nil {
		return nil, err
	}
	submission := &Submission{ledger: s.cfg.Ledger}
	if refused == nil {
		submission.command, refused = s.job(command)
	}
	if submission.refused = refused; refused != nil {
		submission.command.Job = statemachine.Job{
			TenantID: command.TenantID, IdempotencyKey: command.IdempotencyKey, IdempotencyHash: command.Hash,
		}
	}
	return submission, nil
}

// Line returns the id of the line that the job will have, "" if it will have none, or if the command
// is refused unless it was accepted before.
func (s *Submission) Line() string {
	job := &s.command.Job
	if job.Order.Key == "" {
		return ""
	}
	return ledger.LineID(job.TenantID, job.Order.Key)
}

// Occur makes the command that of an occurrence of a schedule: it is accepted under the claim in place of its key. Unless
// order is nil, its job joins the line of the schedule, in which that many jobs may be before it.
func (s *Submission) Occur(of statemachine.Occurrence, claim *ledger.OccurrenceClaim, order *statemachine.Order, maxWaiting int) {
	s.command.Claim, s.command.Job.Occurrence, s.command.Job.IdempotencyKey = claim, of, ""
	s.command.Actor = "schedule"
	if order != nil {
		s.command.Job.Order, s.command.MaxWaiting = *order, maxWaiting
	}
}

// Refused returns why the command would be refused, nil if it would not. The errors are those of [Submission.Accept].
func (s *Submission) Refused() error { return s.refused }

// Order returns the order that the command and its protocol name, without a key if they name no line.
func (s *Submission) Order() statemachine.Order { return s.command.Job.Order }

// Accept accepts the command. The errors are [*apierror.Error]s; a command whose outcome
// is unknown may be accepted again.
func (s *Submission) Accept(ctx context.Context) (ledger.Accepted, error) {
	if s.refused == nil {
		accepted, err := s.ledger.Accept(ctx, s.command)
		return accepted, ledger.Problem(err)
	}
	// The command may have been accepted before: protocols and the policy may have changed
	// since, and a replay is never refused.
	accepted, found, err := s.Find(ctx)
	if err == nil && !found {
		err = s.refused
	}
	return accepted, err
}

// Find returns the job that the command made when it was accepted before. Its errors are those
// of [Submission.Accept].
func (s *Submission) Find(ctx context.Context) (ledger.Accepted, bool, error) {
	accepted, found, err := s.ledger.Replay(ctx, s.command)
	if errors.Is(err, ledger.ErrIdempotencyMismatch) {
		return ledger.Accepted{}, false, nil // The key is another command's.
	}
	return accepted, found, ledger.Problem(err)
}

// job checks the command against its protocol, and returns the ledger's command: the
// job with a copy of the protocol's steps, which later changes of the protocol do not
// affect.
//
// Source: Option B spec, 5.2 and 6.
func (s *Service) job(command *Command) (made ledger.Command, err error) {
	proto, ok := s.cfg.Protocols.Load().Lookup(command.RequestType)
	if !ok {
		return made, unfit(apierror.UnknownRequestType, "/request_type", "%q belongs to no protocol", command.RequestType)
	}
	if violations := proto.CheckSchemaVersion(command.SchemaVersion); len(violations) > 0 {
		return made, &apierror.Error{Code: apierror.SchemaVersionUnsupported, Errors: violations, Unfit: true}
	}
	if violations := proto.ValidatePayload(command.PayloadTree); len(violations) > 0 {
		return made, &apierror.Error{Code: apierror.PayloadInvalid, Errors: violations, Unfit: true}
	}
	correlationID := command.CorrelationID
	if correlationID == "" {
		id, err := uuid.NewRandom()
		if err != nil {
			return made, fmt.Errorf("make a correlation id: %w", err)
		}
		correlationID = id.String()
	}
	steps, err := s.steps(command, proto)
	if err != nil {
		return made, err
	}
	order, err := proto.order(command)
	if err != nil {
		return made, err
	}
	return ledger.Command{
		Job: statemachine.Job{
			TenantID: command.TenantID, RequestType: command.RequestType, SchemaVersion: command.SchemaVersion,
			ProtocolID: proto.ID, ProtocolVersion: proto.Version, DocID: command.DocID, Tags: command.Tags,
			Mode:           cmp.Or(command.Mode, statemachine.ModeDefault),
			IdempotencyKey: command.IdempotencyKey, IdempotencyHash: command.Hash,
			InputRef: command.InputRef, OutputRef: command.OutputRef, WorkspaceRef: command.WorkspaceRef,
			CallbackURLs: command.CallbackURLs, CorrelationID: correlationID, Traceparent: command.Traceparent,
			NotBefore: command.NotBefore, NotAfter: command.NotAfter, Order: order, Class: proto.class(command),
		},
		Steps: steps, Payload: command.Payload, Actor: "client", MaxWaiting: proto.Order.MaxWaiting,
	}, nil
}

// class returns the class of the command's job. What the command names replaces what the protocol says.
func (p *Protocol) class(command *Command) statemachine.Class {
	if class, named := statemachine.ParseClass(command.Priority); named {
		return class
	}
	return p.Class
}

// steps returns a job's copy of the protocol's steps.
func (s *Service) steps(command *Command, proto *Protocol) (steps []statemachine.Step, err error) {
	steps = make([]statemachine.Step, len(proto.Steps))
	for i := range proto.Steps {
		step := &proto.Steps[i]
		steps[i] = statemachine.Step{
			ID: step.ID, Type: step.Type, Service: step.Service, Input: step.Input,
			PayloadPointer: step.PayloadPointer, Policy: step.Policy(s.cfg.Defaults),
			Product: statemachine.Product{OutputRef: command.OutputRef},
		}
		if steps[i].Routing, err = s.route(command, step); err != nil {
			return nil, err
		}
	}
	return steps, nil
}

// route chooses the step's lane.
//
// Source: Option B spec, 7.
func (s *Service) route(command *Command, step *ProtocolStep) (statemachine.Routing, error) {
	decision, err := s.cfg.Router.Decide(command.TenantID, command.DocID, command.Mode, step.Mode)
	if errors.Is(err, routing.ErrDocIDRequired) {
		return decision, unfit(apierror.InvalidEnvelope, "/doc_id", "is required, because step %q runs in mode BURST", step.ID)
	}
	if err != nil {
		return decision, fmt.Errorf("route step %q: %w", step.ID, err)
	}
	return decision, nil
}

// unfit returns the problem of a command that does not fit its protocol.
func unfit(code apierror.Code, pointer, format string, args ...any) error {
	violation := apierror.Violation{Pointer: pointer, Message: fmt.Sprintf(format, args...)}
	return &apierror.Error{Code: code, Errors: []apierror.Violation{violation}, Unfit: true}
}
