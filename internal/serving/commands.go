package serving

import (
	"context"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/envelope"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/problem"
)

// commandsPort serves the commands to HTTP.
type commandsPort struct{ service *commands.Service }

func (a commandsPort) Submit(ctx context.Context, s httpapi.Submission) (api.CommandAccepted, error) {
	ctx = context.WithValue(ctx, admitKey{}, s.Admit)
	accepted, err := a.service.Submit(ctx, s.Body, envelope.Headers{
		IdempotencyKey: s.IdempotencyKey, Traceparent: s.Traceparent,
	})
	if err != nil {
		return api.CommandAccepted{}, err
	}
	return api.CommandAccepted{
		JobID: accepted.JobID, State: api.JobState(accepted.State), Replayed: accepted.Replayed,
		CorrelationID: accepted.CorrelationID,
	}, nil
}

// admitKey finds in a context what says whether a command for a tenant may be
// accepted.
type admitKey struct{}

// Admitting is the ledger for commands that come over HTTP. Whose they are is
// asked here, of the very tenant that the job will have: a second reading of the
// body might read another.
func Admitting(l commands.Ledger) commands.Ledger { return admitting{l} }

type admitting struct{ commands.Ledger }

func (l admitting) Accept(ctx context.Context, command ledger.Command) (ledger.Accepted, error) {
	if err := admits(ctx, command.Job.TenantID); err != nil {
		return ledger.Accepted{}, err
	}
	return l.Ledger.Accept(ctx, command)
}

func (l admitting) Replay(ctx context.Context, command ledger.Command) (ledger.Accepted, bool, error) {
	if err := admits(ctx, command.Job.TenantID); err != nil {
		return ledger.Accepted{}, false, err
	}
	return l.Ledger.Replay(ctx, command)
}

// admits asks what the context carries. Where that is nothing, nobody is let in.
func admits(ctx context.Context, tenantID string) error {
	if admit, ok := ctx.Value(admitKey{}).(func(string) error); ok && admit != nil {
		return admit(tenantID)
	}
	return problem.Newf(problem.Forbidden, "Nobody has said who sends the command.")
}
