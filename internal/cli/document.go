package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// document is the story of a document.
type document struct {
	TenantID string          `json:"tenant_id"`
	DocID    string          `json:"doc_id"`
	Runs     []diagnosis.Run `json:"-"`
	Jobs     []*api.Job      `json:"jobs"`
	More     bool            `json:"more"`
}

// doc returns lucius doc, which says what happened to a document.
func (t *tool) doc() *cobra.Command {
	var limit int
	cmd := t.command(spec{
		use: "doc TENANT DOC_ID", short: "Say what happened to a document", args: 2,
		long: "Lists the jobs of a document, newest first: by which version of which protocol it was processed, how far\n" +
			"each step is, what the job produced or why it failed, and who reran it with which corrections.",
		example: "  lucius doc tenant_a doc_1",
	}, func(ctx context.Context, s *session, args []string) error {
		runs, more, err := diagnosis.Document(args[0], args[1], api.Limit(min(max(limit, 1), 1000)), diagnosis.DocumentReader{
			Jobs: func(params *api.ListJobsParams) (api.JobPage, error) {
				return call[api.JobPage](s.ListJobs(ctx, params))
			},
			Lineage: func(jobID string) (api.Lineage, error) { return call[api.Lineage](s.GetLineage(ctx, jobID)) },
			Missing: func(err error) bool { return ExitCode(err) == ExitNotFound },
		})
		if err != nil {
			return err
		}
		found := document{args[0], args[1], runs, make([]*api.Job, len(runs)), more}
		for i := range runs {
			found.Jobs[i] = runs[i].Job
		}
		return show(s, found, showDocument)
	})
	cmd.Flags().IntVar(&limit, "limit", 20, "maximum number of jobs to show, at most 1000")
	cmd.GroupID = GroupJobs
	return t.calls(cmd)
}

// showDocument writes the story of a document.
func showDocument(p *page, d document) {
	if len(d.Runs) == 0 {
		p.line("There is no job of document %s of tenant %s. Jobs are deleted after their retention.", d.DocID, d.TenantID)
		return
	}
	for i := range d.Runs {
		if i > 0 {
			p.line("")
		}
		run := &d.Runs[i]
		p.line("%s %s, %s", p.style(bold, run.Job.JobID), p.state(string(run.Job.State)), protocolOf(run.Job))
		p.line("  %s", run.Origin.With(p.when))
		p.line("  %s", run.Steps)
		if run.Job.State == api.JobStateFailedFinal {
			p.line("  %s", diagnosis.Fault(run.Job.ErrorCode, run.Job.ErrorMessage))
		}
		if run.Output != "" {
			p.line("  output %s", run.Output)
		}
	}
	p.more(d.More, len(d.Runs))
}

// protocolOf names the protocol of a job with its version.
func protocolOf(job *api.Job) string {
	if job.ProtocolVersion == "" {
		return job.ProtocolID
	}
	return job.ProtocolID + ", version " + job.ProtocolVersion
}
