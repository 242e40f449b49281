package packaging

import (
	"maps"
	"os"
	"path"
	"reflect"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"
)

// minimal are values that the chart cannot do without.
const minimal = `
auth: {tokensSecret: tokens}
protocols: {doc.yaml: "id: doc"}
`

// onAzure are values of replicas that share a storage account.
const onAzure = `
storage: azure
replicas: 3
azure: {tableEndpoint: "https://a.table.core.windows.net", serviceBusNamespace: a.servicebus.windows.net}
auth: {oidcIssuer: "https://issuer.example", oidcAudience: lucius}
protocolsConfigMap: mine
tlsSecret: tls
env: {LUCIUS_RETENTION: 24h, LUCIUS_LISTEN_ADDR: ":8080", LUCIUS_MAX_BODY_BYTES: 2097152, LUCIUS_SERVICEBUS_REPLIES: true}
envFromSecrets: [more]
serviceMonitor: {enabled: true, tokenSecret: scrape, tlsConfig: {ca: {secret: {name: tls, key: ca.crt}}, serverName: lucius.example}}
ingress: {enabled: true, host: lucius.example, tlsSecret: web}
serviceAccount: {annotations: {azure.workload.identity/client-id: "1"}}
podLabels: {azure.workload.identity/use: "true"}
image: {pullSecrets: [pull]}
`

// onPostgres are values of replicas that share a database, which a job migrates.
const onPostgres = minimal + `
storage: postgres
replicas: 3
postgres: {urlSecret: server, migration: {urlSecret: owner, serverRole: lucius_server}}
serviceMonitor: {enabled: true, tokenSecret: scrape}
image: {pullSecrets: [pull]}
nodeSelector: {disk: fast}
`

func load(t *testing.T) *chart.Chart {
	t.Helper()
	found, err := loader.Load("../helm/lucius")
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// render returns the manifests by the names of their templates.
func render(t *testing.T, text string) (map[string]string, error) {
	t.Helper()
	var values chartutil.Values
	if err := yaml.UnmarshalStrict([]byte(text), &values); err != nil {
		t.Fatal(err)
	}
	lucius := load(t)
	all, err := chartutil.ToRenderValues(lucius, values, chartutil.ReleaseOptions{Name: "prod", Namespace: "docs"}, nil)
	if err != nil {
		return nil, err
	}
	out, err := engine.Render(lucius, all)
	found := map[string]string{}
	for name, manifest := range out {
		if strings.TrimSpace(manifest) != "" {
			found[path.Base(name)] = manifest
		}
	}
	return found, err
}

// manifest decodes a manifest, which must have no field that Kubernetes does not know.
func manifest[T any](t *testing.T, manifests map[string]string, name string) (object T) {
	t.Helper()
	if manifests[name] == "" {
		t.Fatalf("the chart makes no %s", name)
	}
	if err := yaml.UnmarshalStrict([]byte(manifests[name]), &object); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, manifests[name])
	}
	return object
}

func variables(pod *corev1.PodSpec) map[string]string {
	found := map[string]string{}
	for _, variable := range pod.Containers[0].Env {
		found[variable.Name] = variable.Value
	}
	return found
}

func TestChart_KeepsJobsOnAVolumeOfOneReplica(t *testing.T) {
	t.Parallel()
	made, err := render(t, minimal)
	if err != nil {
		t.Fatal(err)
	}
	if names := slices.Sorted(maps.Keys(made)); !slices.Equal(names, []string{
		"NOTES.txt", "protocols.yaml", "service.yaml", "serviceaccount.yaml", "statefulset.yaml",
	}) {
		t.Errorf("it makes %v", names)
	}
	set := manifest[appsv1.StatefulSet](t, made, "statefulset.yaml")
	if *set.Spec.Replicas != 1 || len(set.Spec.VolumeClaimTemplates) != 1 {
		t.Errorf("the set is %+v", set.Spec)
	}
	pod := &set.Spec.Template.Spec
	if got := variables(pod); got["LUCIUS_DATA_DIR"] != "/var/lib/lucius" || got["LUCIUS_AUTH_FILE"] == "" || got["LUCIUS_STORAGE_BACKEND"] != "" {
		t.Errorf("the variables are %v", got)
	}
	// The server ends as it does elsewhere, after the time that proxies take to leave the pod out.
	if stop := pod.Containers[0].Lifecycle; stop == nil || *pod.TerminationGracePeriodSeconds != 60+stop.PreStop.Sleep.Seconds {
		t.Errorf("the pod is stopped within %d s: %v", *pod.TerminationGracePeriodSeconds, stop)
	}
	if pod.Containers[0].ReadinessProbe.HTTPGet.Path != "/readyz" {
		t.Errorf("the pod is %+v", pod)
	}
	service := manifest[corev1.Service](t, made, "service.yaml")
	for name, value := range service.Spec.Selector {
		if set.Spec.Template.Labels[name] != value {
			t.Errorf("the service selects %s=%s, the pods have %v", name, value, set.Spec.Template.Labels)
		}
	}
	if protocols := manifest[corev1.ConfigMap](t, made, "protocols.yaml"); protocols.Data["doc.yaml"] != "id: doc" {
		t.Errorf("the protocols are %v", protocols.Data)
	}
}

// TestRestore_FitsTheChart compares the claim and the pod of docs/run/backup.md with those of the chart.
func TestRestore_FitsTheChart(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/run/backup.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "```yaml\n")
	text, _, _ = strings.Cut(strings.ReplaceAll(text, "NAME", "prod-lucius"), "```")
	claimText, podText, _ := strings.Cut(text, "---\n")
	shown := map[string]string{"claim": claimText, "pod": podText}
	claim, pod := manifest[corev1.PersistentVolumeClaim](t, shown, "claim"), manifest[corev1.Pod](t, shown, "pod")
	made, err := render(t, minimal)
	if err != nil {
		t.Fatal(err)
	}
	set := manifest[appsv1.StatefulSet](t, made, "statefulset.yaml")
	of, server, restore := set.Spec.VolumeClaimTemplates[0], set.Spec.Template.Spec, pod.Spec.Containers[0]
	if want := of.Name + "-" + set.Name + "-0"; claim.Name != want || pod.Spec.Volumes[0].PersistentVolumeClaim.ClaimName != want {
		t.Errorf("the set expects the claim %s", want)
	}
	if !reflect.DeepEqual(claim.Spec, of.Spec) {
		t.Errorf("the set claims %+v, the page %+v", of.Spec, claim.Spec)
	}
	if !reflect.DeepEqual(pod.Spec.SecurityContext, server.SecurityContext) ||
		!reflect.DeepEqual(restore.SecurityContext, server.Containers[0].SecurityContext) {
		t.Errorf("the pod is not as restricted as the server's: %+v, %+v", pod.Spec.SecurityContext, restore.SecurityContext)
	}
	dir := variables(&server)["LUCIUS_DATA_DIR"]
	if restore.VolumeMounts[0].MountPath != dir || !slices.Equal(restore.Args, []string{"restore", "-", "--data-dir", dir}) {
		t.Errorf("it does not restore to %s: %+v", dir, restore)
	}
}

func TestChart_RunsReplicasOnAzure(t *testing.T) {
	t.Parallel()
	made, err := render(t, onAzure)
	if err != nil {
		t.Fatal(err)
	}
	deployment := manifest[appsv1.Deployment](t, made, "deployment.yaml")
	pod := &deployment.Spec.Template.Spec
	for name, want := range map[string]string{
		"LUCIUS_STORAGE_BACKEND": "ledger", "LUCIUS_TABLE_ENDPOINT": "https://a.table.core.windows.net", "LUCIUS_BUS": "servicebus",
		"LUCIUS_OIDC_AUDIENCE": "lucius", "LUCIUS_RETENTION": "24h", "LUCIUS_TLS_CERT": "/etc/lucius/tls/tls.crt",
		"LUCIUS_MAX_BODY_BYTES": "2097152", "LUCIUS_SERVICEBUS_REPLIES": "true",
	} {
		if got := variables(pod)[name]; got != want {
			t.Errorf("%s is %q", name, got)
		}
	}
	if *deployment.Spec.Replicas != 3 || variables(pod)["LUCIUS_DATA_DIR"] != "" || made["statefulset.yaml"] != "" || made["protocols.yaml"] != "" {
		t.Errorf("it is not of replicas without a volume: %v", made)
	}
	if pod.Containers[0].LivenessProbe.HTTPGet.Scheme != corev1.URISchemeHTTPS {
		t.Error("the probes do not speak TLS")
	}
	if budget := manifest[policyv1.PodDisruptionBudget](t, made, "disruption.yaml"); budget.Spec.MaxUnavailable.IntValue() != 1 {
		t.Errorf("the budget is %+v", budget.Spec)
	}
	manifest[networkingv1.Ingress](t, made, "ingress.yaml")
	manifest[corev1.ServiceAccount](t, made, "serviceaccount.yaml")
	monitor := manifest[map[string]any](t, made, "servicemonitor.yaml")
	endpoint := monitor["spec"].(map[string]any)["endpoints"].([]any)[0].(map[string]any)
	tls, _ := endpoint["tlsConfig"].(map[string]any)
	if endpoint["scheme"] != "https" || tls["serverName"] != "lucius.example" || monitor["kind"] != "ServiceMonitor" {
		t.Errorf("the monitor is %v", monitor)
	}
}

func TestChart_RunsReplicasOnPostgreSQL(t *testing.T) {
	t.Parallel()
	made, err := render(t, onPostgres)
	if err != nil {
		t.Fatal(err)
	}
	if names := slices.Sorted(maps.Keys(made)); !slices.Equal(names, []string{
		"NOTES.txt", "deployment.yaml", "disruption.yaml", "migration.yaml", "protocols.yaml", "service.yaml", "serviceaccount.yaml", "servicemonitor.yaml",
	}) {
		t.Errorf("it makes %v", names)
	}
	deployment := manifest[appsv1.Deployment](t, made, "deployment.yaml")
	if *deployment.Spec.Replicas != 3 || variables(&deployment.Spec.Template.Spec)["LUCIUS_DATA_DIR"] != "" {
		t.Errorf("it is not of replicas without a volume: %v", made)
	}
	migration := manifest[batchv1.Job](t, made, "migration.yaml")
	if hook := migration.Annotations["helm.sh/hook"]; hook != "pre-install,pre-upgrade" {
		t.Errorf("the migration runs at %q", hook)
	}
	service := manifest[corev1.Service](t, made, "service.yaml")
	if migration.Spec.Template.Labels["app.kubernetes.io/name"] == service.Spec.Selector["app.kubernetes.io/name"] {
		t.Error("the service selects the migration")
	}
	// Each has its own Secret, as a variable and as files.
	for secret, pod := range map[string]*corev1.PodSpec{"server": &deployment.Spec.Template.Spec, "owner": &migration.Spec.Template.Spec} {
		container := &pod.Containers[0]
		url := slices.IndexFunc(container.Env, func(v corev1.EnvVar) bool { return v.Name == "LUCIUS_POSTGRES_URL" })
		if url < 0 || container.Env[url].ValueFrom.SecretKeyRef.Name != secret || variables(pod)["LUCIUS_STORAGE_BACKEND"] != "postgres" {
			t.Errorf("the variables are %v", container.Env)
		}
		for _, other := range []string{"server", "owner"} {
			if holds := strings.Contains(pod.String(), "SecretName:"+other+","); holds != (other == secret) {
				t.Errorf("the pod with the Secret %s has that of %s: %t", secret, other, holds)
			}
		}
		if pod.NodeSelector["disk"] != "fast" || len(pod.ImagePullSecrets) != 1 || !*pod.SecurityContext.RunAsNonRoot ||
			!*container.SecurityContext.ReadOnlyRootFilesystem || container.Image != "lucius:"+load(t).Metadata.AppVersion {
			t.Errorf("the pod is %+v", pod)
		}
	}
	if args := migration.Spec.Template.Spec.Containers[0].Args; !slices.Equal(args, []string{"postgres", "migrate", "--online", "--grant", "lucius_server"}) {
		t.Errorf("the migration runs %v", args)
	}

	made, err = render(t, minimal+"storage: postgres\npostgres: {urlSecret: server}")
	if err != nil || made["migration.yaml"] != "" {
		t.Errorf("without the owner: %v, %s", err, made["migration.yaml"])
	}
	made, err = render(t, strings.Replace(onPostgres, ", serverRole: lucius_server", "", 1))
	if err != nil {
		t.Fatal(err)
	}
	if args := manifest[batchv1.Job](t, made, "migration.yaml").Spec.Template.Spec.Containers[0].Args; !slices.Equal(args, []string{"postgres", "migrate", "--online"}) {
		t.Errorf("without a role, the migration runs %v", args)
	}
}

// TestChart_RefusesWhatWouldNotStart gives values with which a pod would not start, or
// which the chart does not know.
func TestChart_RefusesWhatWouldNotStart(t *testing.T) {
	t.Parallel()
	for text, says := range map[string]string{
		`protocols: {doc.yaml: x}`:                                                "auth.tokensSecret or auth.oidcIssuer",
		`auth: {tokensSecret: t}`:                                                 "protocols or protocolsConfigMap",
		minimal + "storage: azure":                                                "azure.tableEndpoint is required",
		minimal + "storage: postgresql":                                           "storage",
		minimal + "storage: postgres":                                             "postgres.urlSecret is required",
		minimal + "postgres: {migration: {serverRole: r}}":                        "postgres.migration.urlSecret",
		minimal + "replica: 3":                                                    "replica",
		minimal + "env: {PATH: /}":                                                "PATH",
		minimal + "ingress: {enabled: true}":                                      "ingress.host is required",
		minimal + "serviceMonitor: {enabled: true}":                               "serviceMonitor.tokenSecret is required",
		minimal + "tlsSecret: t\nserviceMonitor: {enabled: true, tokenSecret: s}": "serviceMonitor.tlsConfig",
		`{auth: {oidcIssuer: "https://i"}, protocols: {a.yaml: x}}`:               "auth.oidcAudience is required",
	} {
		if _, err := render(t, text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s is answered %v", text, err)
		}
	}
}
