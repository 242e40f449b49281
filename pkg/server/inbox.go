package server

import (
	"bytes"
	"context"
	"encoding/json"
	"time"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/inbox"
	"github.com/lucius-project/lucius/pkg/ledger"
)

const (
	// inboxInterval is the time between two reads of the inbox without a wake-up.
	inboxInterval = time.Second
	// surveyInterval is the time between two counts of the inbox.
	surveyInterval = 10 * time.Second
	// inboxGrace is how long a deployment may take until all replicas have a new protocol.
	inboxGrace = 5 * time.Minute
)

// openInbox opens the reader of the commands that applications submit in their own
// transactions, if there is an inbox and this process has the role api.
func (s *Server) openInbox(context.Context) (err error) {
	if s.cfg.Inbox == nil || !s.cfg.has(RoleAPI) {
		return nil
	}
	retention := s.cfg.Ledger.Retention
	if retention > 0 { // No job is purged before its key's TTL has passed.
		retention = max(retention, s.cfg.Ledger.KeyTTL)
	}
	s.submitted, err = inbox.NewReader(inbox.Config{
		Source: s.cfg.Inbox, Accept: s.acceptSubmitted, Find: s.findSubmitted, Retention: retention,
		Grace: inboxGrace, Logger: s.log,
		Observe: func(outcome inbox.Decision) {
			s.meters.submitted.WithLabelValues(string(outcome)).Inc()
			if outcome == inbox.Refuses {
				s.uses.Counts.Refused()
			}
		},
	})
	s.uses.Inbox, s.uses.InboxSurvey = s.cfg.Inbox, s.submitted.Survey
	return err
}

// acceptSubmitted accepts a command of the inbox as POST /v1/commands does.
func (s *Server) acceptSubmitted(ctx context.Context, command *inbox.Command) (jobID string, err error) {
	submission, err := s.prepareSubmitted(command, func(tenantID string) error {
		return s.cfg.HTTP.TenantLimit.Check("tenant", tenantID, time.Now())
	})
	if err != nil {
		return "", err
	}
	accepted, err := submission.Accept(ledger.WithCaller(ctx, "inbox:"+command.SubmittedBy))
	return accepted.Job.ID, err
}

// findSubmitted returns the job of a command of the inbox, or "". A command that cannot be
// decoded never became a job.
func (s *Server) findSubmitted(ctx context.Context, command *inbox.Command) (jobID string, err error) {
	submission, err := s.prepareSubmitted(command, func(string) error { return nil })
	if err != nil {
		return "", nil //nolint:nilerr // as the comment says
	}
	accepted, _, err := submission.Find(ctx)
	return accepted.Job.ID, err
}

func (s *Server) prepareSubmitted(command *inbox.Command, authorize commands.Authorize) (*commands.Submission, error) {
	var body bytes.Buffer // Compact: white space of the database would count towards the limits.
	if err := json.Compact(&body, command.Body); err != nil {
		return nil, apierror.NotJSON(command.Body, err)
	}
	return s.uses.Commands.Prepare(body.Bytes(), commands.Headers{}, authorize)
}

// inboxLoops returns the loop that accepts commands, and the loop that counts them and
// deletes old ones.
func (s *Server) inboxLoops() (take, maintain background.Loop) {
	return background.Loop{Name: "inbox", Interval: inboxInterval, Pass: s.submitted.RunOnce, Wake: s.cfg.InboxWake},
		background.Loop{Name: "inbox survey", Interval: surveyInterval, Pass: s.submitted.Maintain}
}
