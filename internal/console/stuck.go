package console

import "github.com/lucius-project/lucius/api"

// stuckPage lists the stuck jobs.
type stuckPage struct {
	// Everywhere says that the user may see them.
	Everywhere bool
	List       api.StuckList
}

func stuck(r *request) (view, error) {
	data := stuckPage{Everywhere: r.May(api.GrantRoleAdmin, "")}
	var err error
	if data.Everywhere {
		data.List, err = call[api.StuckList](r.api.ListStuck(r.Context()))
	}
	return view{Title: "Stuck jobs", Template: "stuck", Nav: "Attention", Data: data}, err
}
