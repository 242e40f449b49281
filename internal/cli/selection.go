package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lucius-project/lucius/api"
)

// selection holds the flags that select jobs, as the API's filters do.
type selection struct {
	api.OperationFilter

	state                                                string
	createdAfter, createdBefore, endedAfter, endedBefore string
	tags                                                 []string
}

// register registers the filters that all selections have.
func (f *selection) register(t *tool, cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.Service, "service", "", "only jobs whose failed or current step is of this service")
	flags.StringVar(&f.ErrorCode, "code", "", "only jobs with this error code")
	flags.StringVar(&f.TenantID, "tenant", "", "only jobs of this tenant")
	flags.StringVar(&f.DocID, "doc", "", "only jobs of this document; needs --tenant")
	flags.StringArrayVar(&f.tags, "tag", nil, "only jobs with this tag, key=value; repeat it for jobs with several; needs --tenant")
	flags.StringVar(&f.RequestType, "request-type", "", "only jobs of this request type")
	flags.StringVar(&f.StepType, "step-type", "", "only jobs whose failed or current step is of this type")
	flags.StringVar(&f.createdAfter, "created-after", "", "only jobs accepted since then: "+momentHelp)
	flags.StringVar(&f.createdBefore, "created-before", "", "only jobs accepted before then: "+momentHelp)
	t.completeFlag(cmd, "service", serviceNames)
	t.completeFlag(cmd, "request-type", requestTypes)
}

// registerEnded registers the filters by the time at which jobs ended.
func (f *selection) registerEnded(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.endedAfter, "ended-after", "", "only jobs that ended since then: "+momentHelp)
	flags.StringVar(&f.endedBefore, "ended-before", "", "only jobs that ended before then: "+momentHelp)
}

// registerSince is registerEnded for commands on failed jobs, where --since means --ended-after.
func (f *selection) registerSince(cmd *cobra.Command) {
	f.registerEnded(cmd)
	cmd.Flags().Lookup("ended-after").Usage = "only jobs that failed since then; --since is the same: " + momentHelp
	cmd.Flags().SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "since" {
			name = "ended-after"
		}
		return pflag.NormalizedName(name)
	})
}

// registerLive registers the filter of live jobs.
func (f *selection) registerLive(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.state, "state", "", "only jobs in this state, such as IN_PROGRESS")
	completeWords(cmd, "state", jobStates...)
}

// parse parses the flags that are not strings in the API, and returns all filters.
func (f *selection) parse(s *session) (*api.OperationFilter, error) {
	f.State = api.JobState(strings.ToUpper(f.state))
	for _, moment := range []struct {
		flag, text string
		into       *api.Time
	}{
		{"created-after", f.createdAfter, &f.CreatedAfter}, {"created-before", f.createdBefore, &f.CreatedBefore},
		{"ended-after", f.endedAfter, &f.EndedAfter}, {"ended-before", f.endedBefore, &f.EndedBefore},
	} {
		at, err := s.moment(moment.flag, moment.text)
		if err != nil {
			return nil, err
		}
		if at != nil {
			*moment.into = *at
		}
	}
	tags, err := api.ParseTags(f.tags)
	if err != nil {
		return nil, usagef("--%v", err)
	}
	if f.Tags = tags; f.TenantID == "" && (f.DocID != "" || f.Tags != nil) {
		return nil, usagef("--doc and --tag need --tenant")
	}
	return &f.OperationFilter, nil
}

// tagParams returns the tags as parameters of a query.
func (f *selection) tagParams() *[]string {
	if len(f.tags) == 0 {
		return nil
	}
	return &f.tags
}

// jobs returns the parsed filters as parameters of ListJobs.
func (f *selection) jobs() *api.ListJobsParams {
	return &api.ListJobsParams{
		TenantID: optional(f.TenantID), DocID: optional(f.DocID), Tag: f.tagParams(),
		State: optional(f.State), RequestType: optional(f.RequestType),
		Service: optional(f.Service), StepType: optional(f.StepType), ErrorCode: optional(f.ErrorCode),
		CreatedAfter: optional(f.CreatedAfter), CreatedBefore: optional(f.CreatedBefore),
		EndedAfter: optional(f.EndedAfter), EndedBefore: optional(f.EndedBefore),
	}
}

// serviceNames completes the services that protocols name.
func serviceNames(ctx context.Context, s *session) (words []cobra.Completion) {
	list, err := call[api.ProtocolList](s.ListProtocols(ctx))
	if err != nil {
		return nil
	}
	known := map[string]bool{}
	for i := range list.Protocols {
		for _, step := range list.Protocols[i].Steps {
			if !known[step.Service] {
				known[step.Service] = true
				words = append(words, plain(step.Service))
			}
		}
	}
	return words
}
