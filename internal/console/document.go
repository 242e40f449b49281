package console

import (
	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// documentPage is the story of a document.
type documentPage struct {
	Tenant  tenantFilter
	DocID   string
	Asked   bool // The request names both.
	Runs    []diagnosis.Run
	Lines   []api.Line // of their order keys
	More    bool
	Command string
}

func document(r *request) (view, error) {
	data := documentPage{Tenant: r.tenant(api.GrantRoleRead), DocID: r.FormValue("doc_id")}
	shown := view{Title: "Document", Template: "document", Nav: "Jobs"}
	if data.Asked = data.Tenant.Value != "" && data.DocID != ""; !data.Asked {
		shown.Data = data
		return shown, nil
	}
	var err error
	data.Runs, data.More, err = diagnosis.Document(data.Tenant.Value, data.DocID, pageSize, diagnosis.DocumentReader{
		Jobs: func(params *api.ListJobsParams) (api.JobPage, error) {
			return call[api.JobPage](r.api.ListJobs(r.Context(), params))
		},
		Lineage: func(jobID string) (api.Lineage, error) {
			return call[api.Lineage](r.api.GetLineage(r.Context(), jobID))
		},
		Missing: isMissing,
	})
	if err == nil {
		data.Lines, err = r.linesOf(data.Runs)
	}
	data.Command = diagnosis.Command("doc", data.Tenant.Value, data.DocID)
	shown.Data = data
	return shown, err
}
