package console

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// outboxPage lists the directives of the outbox.
type outboxPage struct {
	Tenant tenantFilter
	State  string
	Lane   string
	Rows   []api.OutboxRow
	More   string
	// SearchedTo is how far back the search got if it ended before the page was full.
	SearchedTo api.Time
	// TenantsOmitted says that rows of some tenants are missing.
	TenantsOmitted bool
	Command        string
	// Everywhere says that the user is an admin of all tenants.
	Everywhere bool
	// DeadLetters is the server's warning of replies that could not be handled; empty if there are none.
	DeadLetters string
	// Inbox says that applications can submit in their own transactions.
	Inbox bool
}

// everyState is the choice of all states.
const everyState = "ALL"

func outbox(r *request) (view, error) {
	data := outboxPage{
		Tenant: r.tenant(api.GrantRoleAdmin), State: cmp.Or(r.FormValue("state"), string(api.OutboxStatePending)),
		Lane: r.FormValue("lane"), Everywhere: r.May(api.GrantRoleAdmin, ""),
	}
	params := &api.ListOutboxParams{
		TenantID: optional(data.Tenant.Value), Limit: new(api.Limit(pageSize)), PageToken: r.pageToken(),
	}
	if data.State != everyState {
		params.State = new(api.OutboxState(data.State))
	}
	var err error
	if params.Lane, err = laneOf(data.Lane); err != nil {
		return view{}, err
	}
	list, err := call[api.OutboxPage](r.api.ListOutbox(r.Context(), params))
	if err != nil {
		return view{}, err
	}
	data.Command = diagnosis.CommandWith("outbox list",
		"state", strings.TrimSuffix(data.State, everyState), "tenant", data.Tenant.Value, "lane", data.Lane)
	data.Rows, data.More = list.Outbox, r.more(list.NextPageToken)
	if len(list.Outbox) < pageSize {
		data.SearchedTo = list.SearchedTo
	}
	data.TenantsOmitted = list.TenantsOmitted
	if data.Everywhere {
		ready, _ := call[api.Readiness](r.api.GetReadiness(r.Context())) // The home page shows that the server is not ready.
		for _, warning := range ready.Warnings {
			if strings.Contains(warning, diagnosis.DeadLettersWarning) {
				data.DeadLetters = warning
			}
		}
		_, err = call[api.InboxPage](r.api.ListInbox(r.Context(), &api.ListInboxParams{Limit: new(api.Limit(1))}))
		data.Inbox = !isMissing(err)
	}
	return view{Title: "Outbox", Template: "outbox", Data: data}, nil
}

// laneOf parses the number of a lane; it is nil if the text is empty.
func laneOf(text string) (*int32, error) {
	if text == "" {
		return nil, nil //nolint:nilnil // There is no lane, and nothing is wrong.
	}
	number, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return nil, badInput("A lane is a number.")
	}
	return new(int32(number)), nil
}

// retryOutbox publishes waiting directives now.
func retryOutbox(r *request) (deed, error) {
	job, tenant, lane := r.FormValue("job"), r.FormValue("tenant_id"), r.FormValue("lane")
	request := api.OutboxRetryRequest{JobID: optional(job), TenantID: optional(tenant)}
	var err error
	if request.Lane, err = laneOf(lane); err != nil {
		return deed{}, err
	}
	args := slices.Concat(diagnosis.Flag("job", job), diagnosis.Flag("tenant", tenant), diagnosis.Flag("lane", lane))
	if len(args) == 0 {
		args = []string{"--all"}
	}
	would := deed{
		Title: "Publish the waiting directives now?", Button: "Publish now", NoReason: true,
		Text: "Pending rows, and steps that wait for their next dispatch, become due now. No retry budget is spent. " +
			"Paused dispatch stays paused.",
		Command: diagnosis.Command("outbox retry", args...),
	}
	if job != "" {
		would.Title = "Publish the directive of job " + diagnosis.ShortID(job) + " now?"
	}
	would.do = func(ctx context.Context, _ string) (string, error) {
		done, err := call[api.OutboxRetryResult](r.api.RetryOutbox(ctx, request))
		switch {
		case err == nil && done.Matched == 0 && done.More:
			err = badInput("No row was found within 30 seconds. Select fewer jobs, such as those of one tenant.")
		case err == nil && done.Matched == 0:
			err = badInput("Nothing waits for its dispatch.")
		case err == nil && len(done.Skipped) > 0 && done.Retried == 0:
			err = badInput(fmt.Sprintf("None of %d became due: %s", done.Matched, done.Skipped[0].Reason))
		case err == nil && done.More:
			err = badInput(fmt.Sprintf("%s became due, and there may be more: publish again.", diagnosis.Count(done.Retried, "row")))
		}
		return r.back("outbox"), err
	}
	return would, nil
}

// stallWork takes an item from its worker.
func stallWork(r *request) (deed, error) {
	return changeWork(r, "stall", r.api.StallWork, deed{
		Title: "Take the work from its worker?", Button: "Take it away",
		Text: "The item is stalled: later reports of its worker about this attempt no longer count, and the step waits " +
			"for its next attempt. No retry budget is spent.",
	})
}

// requeueWork offers a stalled item again.
func requeueWork(r *request) (deed, error) {
	return changeWork(r, "requeue", r.api.RequeueWork, deed{
		Title: "Offer the stalled work again?", Button: "Offer it now",
		Text: "The item is queued with the directive of a new attempt now, without waiting for the backoff. " +
			"No retry budget is spent.",
	})
}

// changeWork completes a deed that changes the item that the form shows. It is refused if the
// item changed since; the form then shows it as it is now.
func changeWork(r *request, verb string,
	change func(context.Context, api.WorkID, api.AdminWorkRequest, ...api.RequestEditorFn) (*http.Response, error), would deed,
) (deed, error) {
	id, key := r.FormValue("work"), cmp.Or(r.FormValue("key"), uuid.NewString())
	item, err := call[api.WorkItem](r.api.GetWork(r.Context(), id))
	if err != nil {
		return deed{}, err
	}
	rev := strconv.FormatInt(item.Rev, 10)
	would.Text = "It is " + diagnosis.Item(&item) + ". " + would.Text
	would.Command = diagnosis.Command("work "+verb, id, "--expected-rev", rev)
	would.Sent = map[string]string{"rev": rev, "key": key}
	would.do = func(ctx context.Context, reason string) (string, error) {
		seen, err := strconv.ParseInt(r.PostFormValue("rev"), 10, 64)
		if err != nil {
			return "", badInput("The form does not say which rev of the item you saw.")
		}
		_, err = call[api.WorkItem](change(ctx, id, api.AdminWorkRequest{ExpectedRev: seen, RequestID: key, Reason: reason}))
		return r.back("outbox"), err
	}
	return would, nil
}

// back returns the URL of the job that the form names, or of the page if it names none.
func (r *request) back(page string) string {
	if job := r.FormValue("job"); job != "" {
		return link("jobs/" + url.PathEscape(job))
	}
	return link(page)
}
