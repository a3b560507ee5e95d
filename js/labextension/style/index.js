import "../lib/panel.css";
import "./sidebar.css";
import "./status.css";
