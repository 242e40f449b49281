{{- define "lucius.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "lucius.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "lucius.labels" -}}
{{ include "lucius.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "lucius.account" -}}
{{- if .Values.serviceAccount.create }}{{ default (include "lucius.name" .) .Values.serviceAccount.name }}{{ else }}{{ default "default" .Values.serviceAccount.name }}{{ end }}
{{- end }}

{{- define "lucius.protocols" -}}
{{- .Values.protocolsConfigMap | default (printf "%s-protocols" (include "lucius.name" .)) }}
{{- end }}

{{- define "lucius.scheme" -}}
{{- if .Values.tlsSecret }}HTTPS{{ else }}HTTP{{ end }}
{{- end }}

{{- /* The URL of a database, of the Secret that is given. */ -}}
{{- define "lucius.url" }}
- name: LUCIUS_POSTGRES_URL
  valueFrom: {secretKeyRef: {name: {{ . }}, key: url}}
{{- end }}

{{- define "lucius.image" -}}
{{ printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}

{{- define "lucius.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{- /* Where pods run. */ -}}
{{- define "lucius.placement" -}}
{{- with .Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "lucius.podSecurity" -}}
{runAsNonRoot: true, runAsUser: 65532, runAsGroup: 65532, fsGroup: 65532, fsGroupChangePolicy: OnRootMismatch, seccompProfile: {type: RuntimeDefault}}
{{- end }}

{{- define "lucius.containerSecurity" -}}
{allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
{{- end }}

{{- /* The variables of every pod; those of .Values.env win. */ -}}
{{- define "lucius.env" -}}
{{- $env := dict "LUCIUS_LISTEN_ADDR" ":8080" "LUCIUS_PROTOCOLS_DIR" "/etc/lucius/protocols" }}
{{- with .Values.auth.tokensSecret }}{{ $_ := set $env "LUCIUS_AUTH_FILE" "/etc/lucius/auth/tokens.yaml" }}{{ end }}
{{- with .Values.auth.oidcIssuer }}{{ $_ := set $env "LUCIUS_OIDC_ISSUER" . }}{{ $_ := set $env "LUCIUS_OIDC_AUDIENCE" (required "auth.oidcAudience is required with auth.oidcIssuer" $.Values.auth.oidcAudience) }}{{ end }}
{{- if .Values.tlsSecret }}{{ $_ := set $env "LUCIUS_TLS_CERT" "/etc/lucius/tls/tls.crt" }}{{ $_ := set $env "LUCIUS_TLS_KEY" "/etc/lucius/tls/tls.key" }}{{ end }}
{{- if eq .Values.storage "azure" }}
{{- $_ := set $env "LUCIUS_STORAGE_BACKEND" "ledger" }}
{{- $_ := set $env "LUCIUS_TABLE_ENDPOINT" (required "azure.tableEndpoint is required with storage azure" .Values.azure.tableEndpoint) }}
{{- with .Values.azure.serviceBusNamespace }}{{ $_ := set $env "LUCIUS_BUS" "servicebus" }}{{ $_ := set $env "LUCIUS_SERVICEBUS_NAMESPACE" . }}{{ end }}
{{- else if eq .Values.storage "postgres" }}{{ $_ := set $env "LUCIUS_STORAGE_BACKEND" "postgres" }}
{{- include "lucius.url" (required "postgres.urlSecret is required with storage postgres" .Values.postgres.urlSecret) }}
{{- else }}{{ $_ := set $env "LUCIUS_DATA_DIR" "/var/lib/lucius" }}
{{- end }}
{{- range $name, $value := merge (dict) .Values.env $env }}
- name: {{ $name }}
  {{- /* A number of a values file is a float64, which toString writes as 2.097152e+06. */}}
  value: {{ kindIs "float64" $value | ternary (toJson $value) (toString $value) | quote }}
{{- end }}
{{- end }}

{{- /* The pod, the same for both kinds. */ -}}
{{- define "lucius.pod" -}}
{{- if not (or .Values.auth.tokensSecret .Values.auth.oidcIssuer) }}
{{- fail "set auth.tokensSecret or auth.oidcIssuer: without it Lucius serves only its own host, and the pod would not start" }}
{{- end }}
{{- if not (or .Values.protocols .Values.protocolsConfigMap) }}
{{- fail "set protocols or protocolsConfigMap: Lucius accepts no command without a protocol" }}
{{- end }}
{{- if and .Values.postgres.migration.serverRole (not .Values.postgres.migration.urlSecret) }}
{{- fail "set postgres.migration.urlSecret: the owner of the schema gives serverRole its rights" }}
{{- end }}
metadata:
  labels:
    {{- include "lucius.labels" . | nindent 4 }}
    {{- with .Values.podLabels }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- with .Values.podAnnotations }}
  annotations: {{ toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "lucius.account" . }}
  {{- include "lucius.pullSecrets" . | nindent 2 }}
  securityContext: {{ include "lucius.podSecurity" . }}
  # The sleep before the stop, LUCIUS_SHUTDOWN_GRACE, and half a minute for what is in hand.
  terminationGracePeriodSeconds: 65
  containers:
    - name: lucius
      image: {{ include "lucius.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args: [serve]
      env: {{- include "lucius.env" . | nindent 8 }}
      {{- with .Values.envFromSecrets }}
      envFrom:
        {{- range . }}
        - secretRef: {name: {{ . }}}
        {{- end }}
      {{- end }}
      ports:
        - {name: http, containerPort: 8080}
      # A server that stops refuses connections. Proxies send new ones for some seconds more.
      lifecycle: {preStop: {sleep: {seconds: 5}}}
      # A store that is opened after a crash may take a while.
      startupProbe: {httpGet: {path: /healthz, port: http, scheme: {{ include "lucius.scheme" . }}}, periodSeconds: 5, failureThreshold: 60}
      livenessProbe: {httpGet: {path: /healthz, port: http, scheme: {{ include "lucius.scheme" . }}}, periodSeconds: 10, timeoutSeconds: 5, failureThreshold: 6}
      readinessProbe: {httpGet: {path: /readyz, port: http, scheme: {{ include "lucius.scheme" . }}}, periodSeconds: 5, timeoutSeconds: 5}
      securityContext: {{ include "lucius.containerSecurity" . }}
      resources: {{ toYaml .Values.resources | nindent 8 }}
      volumeMounts:
        - {name: protocols, mountPath: /etc/lucius/protocols, readOnly: true}
        - {name: tmp, mountPath: /tmp}
        {{- if eq .Values.storage "local" }}
        - {name: data, mountPath: /var/lib/lucius}
        {{- end }}
        {{- if eq .Values.storage "postgres" }}
        - {name: postgres, mountPath: /etc/lucius/postgres, readOnly: true}
        {{- end }}
        {{- if .Values.auth.tokensSecret }}
        - {name: auth, mountPath: /etc/lucius/auth, readOnly: true}
        {{- end }}
        {{- if .Values.tlsSecret }}
        - {name: tls, mountPath: /etc/lucius/tls, readOnly: true}
        {{- end }}
  volumes:
    - name: protocols
      configMap: {name: {{ include "lucius.protocols" . }}}
    - name: tmp
      emptyDir: {}
    {{- if eq .Values.storage "postgres" }}
    - name: postgres
      secret: {secretName: {{ .Values.postgres.urlSecret }}, defaultMode: 288}
    {{- end }}
    {{- with .Values.auth.tokensSecret }}
    - name: auth
      secret: {secretName: {{ . }}, defaultMode: 288}
    {{- end }}
    {{- with .Values.tlsSecret }}
    - name: tls
      secret: {secretName: {{ . }}, defaultMode: 288}
    {{- end }}
  {{- include "lucius.placement" . | nindent 2 }}
{{- end }}
