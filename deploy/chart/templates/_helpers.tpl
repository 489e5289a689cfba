{{- define "bindery.name" -}}
{{ .Release.Name | trunc 50 | trimSuffix "-" }}-bookie
{{- end }}

{{- define "bindery.labels" -}}
app.kubernetes.io/name: bindery
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "bindery.allLabels" -}}
{{ include "bindery.labels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "bindery.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "bindery.metadata" -}}
{{- required "metadataServiceUri: give the ZooKeeper of the cluster, for example zk+hierarchical://zookeeper:2181/ledgers" .Values.metadataServiceUri }}
{{- end }}

{{- define "bindery.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "bindery.name" .) }}
{{- end }}

{{- define "bindery.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10000
runAsGroup: 0
fsGroup: 0
fsGroupChangePolicy: OnRootMismatch
seccompProfile: { type: RuntimeDefault }
{{- end }}

{{- define "bindery.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end }}

{{- define "bindery.scheme" -}}
{{ if eq (toString .Values.config.httpServerTlsEnable) "true" }}HTTPS{{ else }}HTTP{{ end }}
{{- end }}
